//! Pulls a few rows and says where the first one is.
//!
//! ```text
//! MNEME_CONFIG=data/client.toml cargo run -p mneme-client --example pull -- TABLE KEY...
//! ```

use mneme_client::{ClientConfig, ClientError, PullOptions, blocking::Client};

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), ClientError> {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_else(|| "items".into());
    let mut keys: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
    if keys.is_empty() {
        keys = vec![1, 2, 3];
    }
    let client = Client::connect(ClientConfig::from_env()?)?;
    let table = client.table(&name)?;
    let row_bytes = table.spec().row_bytes() as usize;
    let mut rows = vec![0; keys.len() * row_bytes];
    let statuses = table.pull(&keys, &mut rows, &PullOptions::default())?;
    for ((key, row), status) in keys.iter().zip(rows.chunks(row_bytes)).zip(statuses) {
        println!(
            "{key:>20} {:>8} {:02x?}",
            status.word(),
            &row[..row_bytes.min(16)]
        );
    }
    let found = table.where_key(keys[0])?;
    println!(
        "{} is in shard {} on node {}",
        found.key, found.shard, found.node
    );
    for path in found.paths {
        let observed = path.observed_us.map_or("-".into(), |us| format!("{us:.1}"));
        println!(
            "{:>6}: predicted {:.1} us, observed {observed} us",
            path.path.word(),
            path.predicted_us
        );
    }
    client.close();
    Ok(())
}

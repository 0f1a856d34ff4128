//! Trains: pull, compute, push gradients; the nodes run the optimizer.
//!
//! Fits embeddings of a hashed table with adagrad until each key's sum is its parity.
//!
//! ```text
//! MNEME_CONFIG=data/client.toml cargo run -p mneme-client --example train
//! ```

use mneme_client::blocking::{Client, Table};
use mneme_client::{ClientConfig, ClientError, Missing, PullOptions, PushMode, PushOptions};
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::{Dtype, Initializer, Optimizer, RowSchema, TableKind, TableSpec};

const DIM: u32 = 16;
const KEYS: u64 = 1000;

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), ClientError> {
    let client = Client::connect(ClientConfig::from_env()?)?;
    let table = open(&client)?;
    let keys: Vec<u64> = (0..KEYS).collect();
    let mut rows = vec![0.0; keys.len() * DIM as usize];
    let mut gradients = rows.clone();
    for step in 0..50 {
        table.pull_f32(&keys, &mut rows, &PullOptions::missing(Missing::Init))?;
        let mut loss = 0.0;
        for ((key, row), gradient) in keys
            .iter()
            .zip(rows.chunks(DIM as usize))
            .zip(gradients.chunks_mut(DIM as usize))
        {
            let error = row.iter().sum::<f32>() - (key % 2) as f32;
            loss += error * error;
            gradient.fill(2.0 * error);
        }
        table.push(
            PushMode::Gradient,
            &keys,
            &gradients,
            &PushOptions::default(),
        )?;
        if step % 10 == 0 {
            println!("step {step:>2}: loss {:.6}", loss / KEYS as f32);
        }
    }
    client.close();
    Ok(())
}

/// The table of an earlier run, or a new one.
fn open(client: &Client) -> Result<Table, ClientError> {
    let spec = TableSpec {
        optimizer: Optimizer::Adagrad {
            lr: 0.05,
            eps: 1e-10,
            acc0: 0.0,
        },
        init: Initializer::Uniform {
            low: -0.1,
            high: 0.1,
        },
        ..TableSpec::new(
            "example-train",
            TableKind::Hashed,
            RowSchema::single(Dtype::F32, DIM),
        )
    };
    match client.create_table(spec) {
        Err(ClientError::Refused(Refusal::TableExists { table })) => client.table(&table),
        other => other,
    }
}

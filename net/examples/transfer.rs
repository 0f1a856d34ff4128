//! How fast a link moves rows on this host: small requests, large answers, both ends on a
//! single-threaded runtime of their own.
//!
//! `cargo run --release -p mneme-net --example transfer [REPEATS]`

use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use mneme_net::{Endpoint, Identity, Link, LinkOptions, Role, init_authority, issue};
use mneme_proto::frame::FrameKind;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const ROW_BYTES: usize = 264;

/// Rows asked for in one request, and requests in flight.
const SHAPES: [(usize, usize); 7] = [
    (1, 1),
    (48, 1),
    (248, 1),
    (1024, 1),
    (1024, 2),
    (1024, 4),
    (16_384, 1),
];

fn main() -> Outcome<()> {
    let repeats = std::env::args()
        .nth(1)
        .map_or(Ok(2000), |text| text.parse())?;
    let dir = tempfile::tempdir()?;
    let identities = identities(dir.path())?;
    let (bound, addr) = mpsc::channel();
    std::thread::spawn(move || run(serve(identities.0, bound)));
    let addr = addr.recv()?;
    run(measure(addr, identities.1, repeats))
}

fn run<T>(future: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(future)
}

fn identities(dir: &Path) -> Outcome<(Identity, Identity)> {
    let authority = dir.join("authority");
    init_authority(&authority)?;
    let make = |role, name: &str| -> Outcome<Identity> {
        let out = dir.join(name);
        issue(&authority, role, name, &out)?;
        Ok(Identity::load(&out)?)
    };
    Ok((make(Role::Node, "node")?, make(Role::Client, "client")?))
}

/// Answers a request of n 8-byte keys with n rows.
async fn serve(identity: Identity, bound: mpsc::Sender<SocketAddr>) -> Outcome<()> {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let endpoint = Endpoint::bind(listen, identity, LinkOptions::default())?;
    bound.send(endpoint.local_addr())?;
    let rows = Bytes::from(vec![0x5a; 65_536 * ROW_BYTES]);
    while let Some(link) = endpoint.accept().await {
        let rows = rows.clone();
        tokio::spawn(async move {
            while let Some(mut request) = link.next().await {
                let rows = rows.clone();
                tokio::spawn(async move {
                    let (_, _, body) = request.read().await?;
                    // A node writes the rows of each answer anew.
                    let answer = rows[..body.len() / 8 * ROW_BYTES].to_vec();
                    request.answer(FrameKind::Pulled, vec![answer.into()]).await
                });
            }
        });
    }
    Ok(())
}

async fn measure(addr: SocketAddr, identity: Identity, repeats: usize) -> Outcome<()> {
    let endpoint = Endpoint::dialer(identity, LinkOptions::default())?;
    let deadline = Instant::now() + Duration::from_secs(5);
    let link = endpoint.connect(addr, Role::Node, deadline).await?;
    println!(
        "{:>6} {:>6} {:>10} {:>10} {:>10} {:>8} {:>10}",
        "rows", "depth", "p50 us", "p99 us", "k rows/s", "GB/s", "cpu us"
    );
    for (rows, depth) in SHAPES {
        let repeats = (repeats * 1024 / rows.max(64)).clamp(20, repeats * 4);
        // The first tenth warms up.
        shape(&link, rows, depth, repeats / 10 + 1).await?;
        let (start, cpu_start) = (Instant::now(), cpu_us());
        let mut times_us = shape(&link, rows, depth, repeats).await?;
        let elapsed_s = start.elapsed().as_secs_f64();
        let cpu_each_us = (cpu_us() - cpu_start) / times_us.len() as f64;
        times_us.sort_by(f64::total_cmp);
        let at = |share: f64| times_us[((times_us.len() - 1) as f64 * share) as usize];
        let rate = (times_us.len() * rows) as f64 / elapsed_s;
        println!(
            "{rows:>6} {depth:>6} {:>10.0} {:>10.0} {:>10.0} {:>8.2} {cpu_each_us:>10.0}",
            at(0.5),
            at(0.99),
            rate / 1e3,
            rate * ROW_BYTES as f64 / 1e9,
        );
    }
    println!("{:?}", link.stats());
    Ok(())
}

/// Processor time of both ends so far.
fn cpu_us() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// `repeats` requests, `depth` at a time; returns the time of each.
async fn shape(link: &Link, rows: usize, depth: usize, repeats: usize) -> Outcome<Vec<f64>> {
    let tasks: Vec<_> = (0..depth)
        .map(|_| {
            let link = link.clone();
            tokio::spawn(async move {
                let keys = Bytes::from(vec![1; rows * 8]);
                let mut out = vec![0; rows * ROW_BYTES];
                let mut times_us = Vec::with_capacity(repeats / depth);
                for i in 0..repeats / depth {
                    let start = Instant::now();
                    let deadline = start + Duration::from_secs(5);
                    let parts = vec![keys.clone()];
                    let mut answer = link
                        .call(FrameKind::Pull, i as u64, parts, deadline)
                        .await?;
                    for row in out.chunks_exact_mut(ROW_BYTES) {
                        answer.body.copy_to_slice(row);
                    }
                    times_us.push(start.elapsed().as_secs_f64() * 1e6);
                }
                Outcome::Ok(times_us)
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await??);
    }
    Ok(all)
}

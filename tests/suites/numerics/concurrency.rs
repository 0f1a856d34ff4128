//! Many threads at once: nothing lost, nothing torn, nothing read too early.

use std::sync::atomic::{AtomicBool, Ordering};

use mneme_proto::frame::Missing;
use mneme_proto::schema::{Initializer, Optimizer, TableSpec};
use mneme_tests::Dev;
use mneme_tests::rows::{Rows, adagrad, bits, hashed, sgd};

/// Pushes a gradient of -1 in all lanes, `times` times from each of `threads` threads.
fn storm(rows: &Rows, dim: usize, threads: usize, times: usize) {
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for _ in 0..times {
                    rows.gradient(&[1], &vec![-1.0; dim]);
                }
            });
        }
    });
}

/// The figure: 8 threads, 10,000 pushes each, one key: exactly 80000 (I-2).
#[test]
fn eight_threads_make_exactly_eighty_thousand() {
    let dev = Dev::start();
    let rows = Rows::create(&dev.client(), hashed("t", 1, sgd(1.0)));
    storm(&rows, 1, 8, 10_000);
    assert_eq!(rows.lane(1).to_bits(), 80_000_f32.to_bits());
}

/// B052: no update is lost, in any lane, nor in the optimizer's state.
#[test]
fn no_update_is_lost() {
    let dev = Dev::start();
    let client = dev.client();
    let one = Rows::create(&client, hashed("one", 1, sgd(1.0)));
    storm(&one, 1, 16, 1000);
    assert_eq!(one.lane(1).to_bits(), 16_000_f32.to_bits());
    let wide = Rows::create(&client, hashed("wide", 1024, sgd(1.0)));
    storm(&wide, 1024, 16, 1000);
    assert_eq!(bits(&wide.pull(&[1])), vec![16_000_f32.to_bits(); 1024]);
    let squares = Rows::create(&client, hashed("squares", 1, adagrad(0.1, 1e-10, 0.0)));
    storm(&squares, 1, 16, 1000);
    assert_eq!(squares.row_and_state(1).1, [16_000.0]);
}

/// B053: a client reads its own acknowledged pushes (I-4).
#[test]
fn a_client_reads_its_own_writes() {
    let dev = Dev::start();
    let rows = Rows::create(&dev.client(), hashed("t", 1, sgd(1.0)));
    for i in 1..=10_000 {
        rows.gradient(&[3], &[-1.0]);
        assert_eq!(rows.lane(3), i as f32);
    }
}

/// What one client reads of a key never goes back (I-4).
#[test]
fn reads_never_go_back() {
    let dev = Dev::start();
    let writer = Rows::create(&dev.client(), hashed("t", 1, sgd(1.0)));
    writer.assign(&[1], &[0.0]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (reader, done) = (Rows::open(&dev.client(), "t"), &done);
            scope.spawn(move || {
                let mut last = 0.0;
                while !done.load(Ordering::Relaxed) {
                    let now = reader.lane(1);
                    assert!(now >= last, "{now} after {last}");
                    last = now;
                }
            });
        }
        for _ in 0..5000 {
            writer.gradient(&[1], &[-1.0]);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(writer.lane(1), 5000.0);
}

/// B054: rows are never torn (I-5).
#[test]
fn rows_are_never_torn() {
    const DIM: usize = 1024;
    let dev = Dev::start();
    let writer = Rows::create(&dev.client(), hashed("t", DIM as u32, Optimizer::None));
    writer.assign(&[1], &[1.0; DIM]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (reader, done) = (Rows::open(&dev.client(), "t"), &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let row = reader.pull(&[1]);
                    assert!(row.iter().all(|v| *v == row[0] && *v != 0.0), "a torn row");
                }
            });
        }
        for i in 0..4000 {
            writer.assign(&[1], &[if i % 2 == 0 { 2.0 } else { 1.0 }; DIM]);
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// B058: many threads make the same new keys: each is made once, and all see the same row.
#[test]
fn first_touch_by_many_makes_one_row() {
    const THREADS: usize = 64;
    let dev = Dev::start();
    let init = Initializer::Normal {
        mean: 0.0,
        std: 1.0,
    };
    let rows = Rows::create(
        &dev.client(),
        TableSpec {
            init,
            ..hashed("t", 4, Optimizer::None)
        },
    );
    let keys: Vec<u64> = (0..1000).map(|i| i * 7919).collect();
    let seen: Vec<Vec<u32>> = std::thread::scope(|scope| {
        let pull = || {
            bits(
                &rows
                    .pull_with(&keys, Missing::Init)
                    .expect("a training pull")
                    .0,
            )
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(pull)).collect();
        threads
            .into_iter()
            .map(|t| t.join().expect("no panic"))
            .collect()
    });
    assert!(
        seen.iter().all(|s| *s == seen[0]),
        "two threads saw different rows"
    );
    assert_eq!(rows.count(), 1000);
}

/// B058: first touches by pushes: as many steps as pushes, from the one initial row.
#[test]
fn first_touch_by_pushes_loses_no_step() {
    const THREADS: usize = 16;
    let dev = Dev::start();
    let init = Initializer::Constant(5.0);
    let rows = Rows::create(
        &dev.client(),
        TableSpec {
            init,
            ..hashed("t", 1, sgd(1.0))
        },
    );
    let keys: Vec<u64> = (0..1000).collect();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| rows.gradient(&keys, &[-1.0; 1000]));
        }
    });
    assert_eq!(rows.pull(&keys), vec![5.0 + THREADS as f32; 1000]);
    assert_eq!(rows.count(), 1000);
}

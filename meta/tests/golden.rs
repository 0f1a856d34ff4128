//! Bytes on disk are fixed: the state of a small cluster, as version 1 writes it, must load for
//! ever. When the format changes, `CATALOGUE_VERSION` grows and a new file joins the old ones.

// A panic in the making of the cluster is a failed test.
#![allow(clippy::unwrap_used)]

mod fixture;

use fixture::{Cluster, spec};
use mneme_meta::log_store::format;
use mneme_meta::state::State;
use mneme_proto::grant::Level;
use mneme_proto::schema::{Initializer, Optimizer, TableKind};

const STATE_1: &[u8] = include_bytes!("../golden/state-1.bin");

/// Two nodes; a mutable table with an optimizer, a sealed one with a version to go back to.
fn small_cluster() -> State {
    let mut cluster = Cluster::new();
    let mut nodes = [
        cluster.register("n1", vec![]),
        cluster.register("n2", vec![]),
    ];
    let mut trained = spec("trained");
    trained.optimizer = Optimizer::from_options("adagrad", &[]).unwrap();
    trained.init = Initializer::Uniform {
        low: -0.5,
        high: 0.5,
    };
    cluster.served_table(trained, &mut nodes);
    let mut words = spec("words");
    words.kind = TableKind::Dense { rows: 30_522 };
    let words = cluster.served_table(words, &mut nodes);
    cluster.import(words, &mut nodes);
    cluster.import(words, &mut nodes);
    cluster.begin_load(words);
    cluster.grant(words, "ann", Some(Level::Write));
    cluster.state
}

#[test]
fn version_1_loads_and_is_what_is_written() {
    let state = small_cluster();
    let written = format::encode("the state", &state).unwrap();
    if let Some(path) = std::env::var_os("MNEME_WRITE_GOLDEN") {
        std::fs::write(path, &written).unwrap();
    }
    let golden: State = format::decode("the state", STATE_1).unwrap();
    assert_eq!(golden, state);
    assert_eq!(written, STATE_1);
}

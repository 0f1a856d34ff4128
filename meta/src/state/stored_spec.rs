//! Table specifications in log entries and snapshots.
//!
//! `TableSpec`'s own serde form is JSON's (its optimizer is tagged by name), which postcard cannot
//! read back. These mirrors give it a positional one. They do not compile when a field is added to
//! the originals: that is the moment to raise `CATALOGUE_VERSION`.

use mneme_proto::schema::{
    Adam, Decay, Initializer, Optimizer, Rounding, RowSchema, TableKind, TableSpec,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
#[serde(remote = "TableSpec")]
struct StoredSpec {
    name: String,
    tenant: String,
    kind: TableKind,
    schema: RowSchema,
    shards: u32,
    #[serde(with = "StoredOptimizer")]
    optimizer: Optimizer,
    init: Initializer,
    seed: u64,
    default_value: f32,
    padding_key: Option<u64>,
    rounding: Rounding,
    master: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Optimizer")]
enum StoredOptimizer {
    None,
    Sgd {
        lr: f64,
        momentum: f64,
        weight_decay: f64,
    },
    Adagrad {
        lr: f64,
        eps: f64,
        acc0: f64,
    },
    RowwiseAdagrad {
        lr: f64,
        eps: f64,
        acc0: f64,
        weight_decay: f64,
        decay: Decay,
    },
    Adam(Adam),
    AdamW(Adam),
    Ftrl {
        lr: f64,
        l1: f64,
        l2: f64,
        beta: f64,
        n0: f64,
    },
}

pub(crate) fn serialize<S: Serializer>(spec: &TableSpec, to: S) -> Result<S::Ok, S::Error> {
    StoredSpec::serialize(spec, to)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<TableSpec, D::Error> {
    StoredSpec::deserialize(from)
}

#[cfg(test)]
mod tests {
    use mneme_proto::schema::Dtype;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Holder(#[serde(with = "super")] TableSpec);

    #[test]
    fn every_optimizer_comes_back() {
        for optimizer in Optimizer::DEFAULTS {
            let spec = TableSpec {
                shards: 32,
                optimizer,
                init: Initializer::Normal {
                    mean: 0.0,
                    std: 0.01,
                },
                seed: 7,
                padding_key: Some(u64::MAX),
                tenant: "default".into(),
                ..TableSpec::new(
                    "t",
                    TableKind::Dense { rows: 30_522 },
                    RowSchema::single(Dtype::F32, 384),
                )
            };
            let bytes = postcard::to_stdvec(&Holder(spec.clone())).unwrap();
            let back: Holder = postcard::from_bytes(&bytes).unwrap();
            assert_eq!(back, Holder(spec));
        }
    }
}

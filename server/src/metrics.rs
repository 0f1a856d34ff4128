//! The node's counters and gauges. A registry by value: many nodes fit in one process. Labels
//! are bounded: kinds of refusals, tables up to a limit, pools; never a key or a client (B111).

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use mneme_proto::refusal::Refusal;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::limits::METRIC_TABLES_MAX;

/// Label of a refusal counter.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RefusalLabel {
    kind: &'static str,
}

/// Labels of a table's gauges.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TableLabel {
    tenant: String,
    table: String,
}

/// Label of a pool's gauges.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PoolLabel {
    pool: String,
}

/// Figures of one table on this node.
#[derive(Debug, Clone)]
pub struct TableFigures {
    /// Its tenant.
    pub tenant: String,
    /// Its name.
    pub table: String,
    /// Rows held.
    pub rows: u64,
    /// Bytes held.
    pub bytes: u64,
}

/// Figures of one pool.
#[derive(Debug, Clone)]
pub struct PoolFigures {
    /// As given on the command line.
    pub pool: String,
    /// What it may hold.
    pub limit_bytes: u64,
    /// What regions have taken.
    pub used_bytes: u64,
    /// What the system holds for them.
    pub resident_bytes: u64,
}

/// What is looked up when somebody asks for the metrics.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// All tables.
    pub tables: Vec<TableFigures>,
    /// All pools.
    pub pools: Vec<PoolFigures>,
    /// Bytes of answers under way.
    pub reply_bytes: u64,
    /// Seconds since 1970 at which the certificate ends.
    pub cert_not_after_s: u64,
    /// Whether the node's lease with the catalogue is live.
    pub lease_live: bool,
}

type BytesGauge<L> = Family<L, Gauge<u64, AtomicU64>>;

/// All metrics of a node.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Pull frames answered.
    pub pulls: Counter,
    /// Push frames answered.
    pub pushes: Counter,
    /// Rows answered by pulls.
    pub pulled_rows: Counter,
    /// Bytes of pull answers.
    pub pulled_bytes: Counter,
    /// Keys pulled that had no row.
    pub pulled_missing: Counter,
    /// Rows that pushes changed.
    pub pushed_rows: Counter,
    /// Bytes of push requests.
    pub pushed_bytes: Counter,
    /// Parts refused because a gradient or a result was not finite (B017).
    pub rejected_nonfinite: Counter,
    /// Links open.
    pub links: Gauge,
    /// Requests being worked on.
    pub requests: Gauge,
    refusals: Family<RefusalLabel, Counter>,
    table_rows: BytesGauge<TableLabel>,
    table_bytes: BytesGauge<TableLabel>,
    pool_limit: BytesGauge<PoolLabel>,
    pool_used: BytesGauge<PoolLabel>,
    pool_resident: BytesGauge<PoolLabel>,
    reply_bytes: Gauge,
    cert_not_after: Gauge,
    lease_live: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// A registry with all of them at zero.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("mneme");
        let r = &mut registry;
        Self {
            pulls: counter(r, "pulls", "Pull frames answered"),
            pushes: counter(r, "pushes", "Push frames answered"),
            pulled_rows: counter(r, "pulled_rows", "Rows answered by pulls"),
            pulled_bytes: counter(r, "pulled_bytes", "Bytes of pull answers"),
            pulled_missing: counter(r, "pulled_missing", "Pulled keys that had no row"),
            pushed_rows: counter(r, "pushed_rows", "Rows changed by pushes"),
            pushed_bytes: counter(r, "pushed_bytes", "Bytes of push requests"),
            rejected_nonfinite: counter(
                r,
                "push_rejected_nonfinite",
                "Push parts refused because a gradient or result was not finite",
            ),
            links: gauge(r, "links", "Links open"),
            requests: gauge(r, "requests", "Requests being worked on"),
            refusals: family(r, "refusals", "Requests and parts refused, by kind", None),
            table_rows: family(r, "table_rows", "Rows held of a table", None),
            table_bytes: family(r, "table", "Memory held of a table", Some(Unit::Bytes)),
            pool_limit: family(r, "pool_limit", "What a pool may hold", Some(Unit::Bytes)),
            pool_used: family(r, "pool_used", "What regions have taken", Some(Unit::Bytes)),
            pool_resident: family(
                r,
                "pool_resident",
                "What the system holds",
                Some(Unit::Bytes),
            ),
            reply_bytes: gauge(r, "reply_bytes", "Bytes of answers under way"),
            cert_not_after: gauge(r, "cert_not_after_seconds", "End of the certificate"),
            lease_live: gauge(r, "lease_live", "1 while mutable shards may be served"),
            registry,
        }
    }

    /// Counts a refusal.
    pub fn refused(&self, refusal: &Refusal) {
        if matches!(refusal, Refusal::NonFinite { .. }) {
            self.rejected_nonfinite.inc();
        }
        self.refusals
            .get_or_create(&RefusalLabel {
                kind: kind_of(refusal),
            })
            .inc();
    }

    /// The exposition text, with the gauges as `figures` say now. Tables beyond the limit are
    /// summed up as one.
    #[must_use]
    pub fn text(&self, figures: &Figures) -> String {
        self.table_rows.clear();
        self.table_bytes.clear();
        for (at, t) in figures.tables.iter().enumerate() {
            let label = if at < METRIC_TABLES_MAX {
                TableLabel {
                    tenant: t.tenant.clone(),
                    table: t.table.clone(),
                }
            } else {
                TableLabel {
                    tenant: String::new(),
                    table: "(others)".into(),
                }
            };
            self.table_rows.get_or_create(&label).inc_by(t.rows);
            self.table_bytes.get_or_create(&label).inc_by(t.bytes);
        }
        for p in &figures.pools {
            let label = PoolLabel {
                pool: p.pool.clone(),
            };
            self.pool_limit.get_or_create(&label).set(p.limit_bytes);
            self.pool_used.get_or_create(&label).set(p.used_bytes);
            self.pool_resident
                .get_or_create(&label)
                .set(p.resident_bytes);
        }
        self.reply_bytes.set(figures.reply_bytes as i64);
        self.cert_not_after.set(figures.cert_not_after_s as i64);
        self.lease_live.set(figures.lease_live.into());
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string cannot fail");
        text
    }
}

fn counter(registry: &mut Registry, name: &str, help: &str) -> Counter {
    let counter = Counter::default();
    registry.register(name, help, counter.clone());
    counter
}

fn gauge(registry: &mut Registry, name: &str, help: &str) -> Gauge {
    let gauge = Gauge::default();
    registry.register(name, help, gauge.clone());
    gauge
}

fn family<L, M>(registry: &mut Registry, name: &str, help: &str, unit: Option<Unit>) -> Family<L, M>
where
    L: EncodeLabelSet + Clone + std::hash::Hash + Eq + std::fmt::Debug + Send + Sync + 'static,
    M: prometheus_client::encoding::EncodeMetric
        + prometheus_client::metrics::TypedMetric
        + Default
        + std::fmt::Debug
        + Send
        + Sync
        + 'static,
{
    let family = Family::<L, M>::default();
    match unit {
        Some(unit) => registry.register_with_unit(name, help, unit, family.clone()),
        None => registry.register(name, help, family.clone()),
    }
    family
}

const fn kind_of(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Version { .. } => "version",
        Refusal::Malformed { .. } => "malformed",
        Refusal::PermissionDenied { .. } => "permission_denied",
        Refusal::Schema { .. } => "schema",
        Refusal::UnknownTable { .. } => "unknown_table",
        Refusal::NotPermitted { .. } => "not_permitted",
        Refusal::TableState { .. } => "table_state",
        Refusal::TableLost { .. } => "table_lost",
        Refusal::NotServed { .. } => "not_served",
        Refusal::WrongEpoch { .. } => "wrong_epoch",
        Refusal::GenerationGone { .. } => "generation_gone",
        Refusal::RowOutOfRange { .. } => "row_out_of_range",
        Refusal::Mode { .. } => "mode",
        Refusal::Shape { .. } => "shape",
        Refusal::NonFinite { .. } => "non_finite",
        Refusal::UnknownSession { .. } => "unknown_session",
        Refusal::Sequence { .. } => "sequence",
        Refusal::Limit { .. } => "limit",
        Refusal::Unavailable { .. } => "unavailable",
        Refusal::Internal { .. } => "internal",
        _ => "other",
    }
}

/// Metrics and where their figures come from, for the HTTP service.
#[derive(Clone)]
pub struct Exposed {
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// Looks the gauges' figures up.
    pub figures: Arc<dyn Fn() -> Figures + Send + Sync>,
    /// Whether the node serves.
    pub ready: Arc<dyn Fn() -> bool + Send + Sync>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B111: bounded series, dropped tables vanish, label values are escaped.
    #[test]
    fn series_are_bounded_and_vanish() {
        let metrics = Metrics::new();
        metrics.refused(&Refusal::NonFinite {
            what: "the gradient".into(),
            key: 2,
        });
        let table = |i: usize| TableFigures {
            tenant: "default".into(),
            table: format!("t{i}\"\n"),
            rows: 1,
            bytes: 10,
        };
        let tables = (0..METRIC_TABLES_MAX + 500).map(table).collect();
        let text = metrics.text(&Figures {
            tables,
            ..Figures::default()
        });
        assert!(text.contains("mneme_push_rejected_nonfinite_total 1\n"));
        assert!(text.contains("mneme_refusals_total{kind=\"non_finite\"} 1\n"));
        assert!(
            text.contains("table=\"t7\\\"\\n\"} 1\n"),
            "{}",
            &text[..2000]
        );
        assert!(text.contains("table=\"(others)\"} 500\n"));
        assert!(text.lines().count() < 2 * METRIC_TABLES_MAX + 100);
        let text = metrics.text(&Figures::default());
        assert!(!text.contains("table=\""));
    }
}

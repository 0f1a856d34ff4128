//! The catalogue's metrics, in a registry of its own: many members fit in one process.
//!
//! Labels are bounded: request words and states, never a table, a node, a client or an address.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Which request, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    request: &'static str,
    outcome: &'static str,
}

/// What is counted by state.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

/// What is measured when somebody looks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Revision of the state.
    pub revision: u64,
    /// Whether this member leads.
    pub leads: bool,
    /// Raft's term.
    pub term: u64,
    /// Last log index applied.
    pub applied_index: u64,
    /// Last log index on disk.
    pub log_index: u64,
    /// Links open.
    pub links: usize,
    /// Nodes (alive, suspect).
    pub nodes: (usize, usize),
    /// Tables by state's word.
    pub tables: Vec<(&'static str, usize)>,
}

/// Counters and gauges of one member.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    revision: Gauge,
    leads: Gauge,
    term: Gauge,
    applied_index: Gauge,
    log_index: Gauge,
    links: Gauge,
    nodes: Family<StateLabels, Gauge>,
    tables: Family<StateLabels, Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("mneme_catalogue");
        let requests = Family::default();
        registry.register(
            "requests",
            "Requests answered, by outcome",
            requests.clone(),
        );
        let mut gauge = |name: &str, help: &str| {
            let gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let revision = gauge("revision", "Revision of the catalogue's state");
        let leads = gauge("leads", "1 if this member leads");
        let term = gauge("raft_term", "Raft term");
        let applied_index = gauge("raft_applied_index", "Last log index applied");
        let log_index = gauge("raft_log_index", "Last log index on disk");
        let links = gauge("links", "Links open");
        let nodes = Family::default();
        registry.register("nodes", "Storage nodes, by liveness", nodes.clone());
        let tables = Family::default();
        registry.register("tables", "Tables, by state", tables.clone());
        Self {
            registry,
            requests,
            revision,
            leads,
            term,
            applied_index,
            log_index,
            links,
            nodes,
            tables,
        }
    }
}

impl Metrics {
    /// Counts an answered request. Both words are from fixed sets.
    pub fn count_request(&self, request: &'static str, outcome: &'static str) {
        let labels = RequestLabels { request, outcome };
        self.requests.get_or_create(&labels).inc();
    }

    /// The Prometheus text, with the gauges as given.
    #[must_use]
    pub fn text(&self, now: &Gauges) -> String {
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        self.revision.set(signed(now.revision));
        self.leads.set(i64::from(now.leads));
        self.term.set(signed(now.term));
        self.applied_index.set(signed(now.applied_index));
        self.log_index.set(signed(now.log_index));
        self.links.set(signed(now.links as u64));
        let set = |family: &Family<StateLabels, Gauge>, state, count: usize| {
            let gauge = family.get_or_create(&StateLabels { state });
            gauge.set(signed(count as u64));
        };
        set(&self.nodes, "alive", now.nodes.0);
        set(&self.nodes, "suspect", now.nodes.1);
        for (state, count) in &now.tables {
            set(&self.tables, state, *count);
        }
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string cannot fail");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_what_was_counted() {
        let metrics = Metrics::default();
        metrics.count_request("get_map", "ok");
        metrics.count_request("get_map", "ok");
        let gauges = Gauges {
            revision: 9,
            tables: vec![("sealed", 2)],
            ..Gauges::default()
        };
        let text = metrics.text(&gauges);
        assert!(
            text.contains("mneme_catalogue_requests_total{request=\"get_map\",outcome=\"ok\"} 2")
        );
        assert!(text.contains("mneme_catalogue_revision 9"));
        assert!(text.contains("mneme_catalogue_tables{state=\"sealed\"} 2"));
    }
}

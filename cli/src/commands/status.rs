//! `mneme status`.

use mneme_proto::control::{ClusterStatus, NodeStatus, PoolReport};
use serde::Serialize;

use super::Session;
use super::table::{TableLine, lines, list_text};
use crate::output::{bytes, columns, fields};

/// The cluster as it is printed.
#[derive(Serialize)]
struct Status {
    cluster: String,
    revision: u64,
    leader: u64,
    members: Vec<Member>,
    nodes: Vec<Node>,
    tables: Vec<TableLine>,
}

#[derive(Serialize)]
struct Member {
    id: u64,
    address: String,
}

#[derive(Serialize)]
struct Node {
    name: String,
    id: u64,
    incarnation: u64,
    address: String,
    domain: String,
    alive: bool,
    silent_ms: u64,
    shards: u32,
    pools: Vec<PoolReport>,
}

impl From<&NodeStatus> for Node {
    fn from(node: &NodeStatus) -> Self {
        Self {
            name: node.entry.name.clone(),
            id: node.entry.node.0,
            incarnation: node.entry.incarnation.0,
            address: node.entry.address.clone(),
            domain: node.entry.domain.clone(),
            alive: node.alive,
            silent_ms: node.silent_ms,
            shards: node.shards,
            pools: node.pools.clone(),
        }
    }
}

impl Status {
    fn new(status: &ClusterStatus, tables: Vec<TableLine>) -> Self {
        let member = |(id, address): &(u64, String)| Member {
            id: *id,
            address: address.clone(),
        };
        Self {
            cluster: format!("{:016x}", status.cluster.0),
            revision: status.revision.0,
            leader: status.leader,
            members: status.members.iter().map(member).collect(),
            nodes: status.nodes.iter().map(Node::from).collect(),
            tables,
        }
    }

    fn text(&self) -> String {
        let members: Vec<String> = self
            .members
            .iter()
            .map(|m| format!("{} at {}", m.id, m.address))
            .collect();
        let head = fields([
            ("cluster", self.cluster.clone()),
            ("catalogue", members.join(", ")),
            ("leader", self.leader.to_string()),
            ("revision", self.revision.to_string()),
        ]);
        let nodes = self.nodes.iter().map(|node| {
            let sum = |of: fn(&PoolReport) -> u64| node.pools.iter().map(of).sum();
            let state = if node.alive { "alive" } else { "silent" };
            [
                node.name.clone(),
                node.address.clone(),
                state.into(),
                node.shards.to_string(),
                bytes(sum(|pool| pool.used_bytes)),
                bytes(sum(|pool| pool.limit_bytes)),
            ]
        });
        let header = ["node", "address", "state", "shards", "used", "memory"];
        let nodes = columns(&header, nodes);
        format!("{head}\n\n{nodes}\n\n{}", list_text(&self.tables))
    }
}

/// Runs the command.
///
/// # Errors
/// One line.
pub fn run(session: &Session) -> anyhow::Result<()> {
    let client = session.client()?;
    let status = client.status()?;
    let tables = lines(&client, &status.tables);
    let status = Status::new(&status, tables);
    client.close();
    session.output.print(&status, || status.text())?;
    Ok(())
}

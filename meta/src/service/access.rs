//! Who may ask what (I-13). The certificate is the principal; a node speaks for itself only, a
//! client may what it is granted, an admin everything.
//!
//! A client without a grant is answered the same whether a table is there or not. One thing a
//! name tells: whoever creates a table learns that its name is taken.

use mneme_net::{Principal, Role};
use mneme_proto::control::{CatalogueRequest, Change, TableRef};
use mneme_proto::grant::Level;
use mneme_proto::ids::{NodeId, TableId};
use mneme_proto::refusal::Refusal;

use crate::state::State;
use crate::state::record::TableRecord;

/// A request's word in metrics and refusals.
pub(super) fn word(request: &CatalogueRequest) -> &'static str {
    match request {
        CatalogueRequest::Hello => "hello",
        CatalogueRequest::Register(_) => "register",
        CatalogueRequest::Heartbeat { .. } => "heartbeat",
        CatalogueRequest::Report { .. } => "report",
        CatalogueRequest::TakeGenerations { .. } => "take_generations",
        CatalogueRequest::NodeTables { .. } => "node_tables",
        CatalogueRequest::CreateTable { .. } => "create_table",
        CatalogueRequest::DropTable { .. } => "drop_table",
        CatalogueRequest::ResetTable { .. } => "reset_table",
        CatalogueRequest::BeginLoad { .. } => "begin_load",
        CatalogueRequest::Publish { .. } => "publish",
        CatalogueRequest::ListTables => "list_tables",
        CatalogueRequest::GetMap { .. } => "get_map",
        CatalogueRequest::Watch { .. } => "watch",
        CatalogueRequest::Status => "status",
        CatalogueRequest::Versions { .. } => "versions",
        CatalogueRequest::SetTable { .. } => "set_table",
        CatalogueRequest::Grant { .. } => "grant",
        CatalogueRequest::Grants { .. } => "grants",
    }
}

/// Who may ask a request.
enum Rule<'a> {
    /// Every principal; the answer holds what it may read.
    Anyone,
    /// Clients and admins.
    Clients,
    /// The node of this name.
    NodeNamed(&'a str),
    /// This node.
    Node(NodeId),
    /// Whoever may do this with the table.
    Table(&'a mut TableRef, Level),
    /// The same of a table that is named by its id.
    TableId(TableId, Level),
}

/// Every request has a rule: one without does not compile.
fn rule(request: &mut CatalogueRequest) -> Rule<'_> {
    use CatalogueRequest as Ask;
    match request {
        Ask::Hello | Ask::ListTables | Ask::Watch { .. } | Ask::Status => Rule::Anyone,
        Ask::Register(registration) => Rule::NodeNamed(&registration.name),
        Ask::Heartbeat { node, .. }
        | Ask::Report { node, .. }
        | Ask::TakeGenerations { node, .. }
        | Ask::NodeTables { node } => Rule::Node(*node),
        Ask::CreateTable { .. } => Rule::Clients,
        Ask::GetMap { table } | Ask::Versions { table } => Rule::Table(table, Level::Read),
        // Whoever may write rows may bring them as a new version, and go back to the old one.
        Ask::BeginLoad { table } => Rule::Table(table, Level::Write),
        Ask::Publish { table, .. } => Rule::TableId(*table, Level::Write),
        Ask::DropTable { table }
        | Ask::ResetTable { table }
        | Ask::SetTable { table, .. }
        | Ask::Grant { table, .. }
        | Ask::Grants { table } => Rule::Table(table, Level::Admin),
    }
}

/// What a principal may do with a table. Nodes and members of the catalogue read what they keep
/// and serve; they change it by their reports alone.
fn level(peer: &Principal, table: &TableRecord) -> Option<Level> {
    match peer.role {
        Role::Admin => Some(Level::Admin),
        Role::Node | Role::Catalogue => Some(Level::Read),
        Role::Client => table.grants.get(&peer.name).copied(),
    }
}

/// Whether a principal may read a table, and so see it in lists.
pub(super) fn may_read(peer: &Principal, table: &TableRecord) -> bool {
    level(peer, table).is_some()
}

/// Whether a principal is told of a change. A table that is gone took its grants along: clients
/// hear of it from its nodes, when they ask for its rows.
pub(super) fn may_hear(peer: &Principal, change: &Change, state: &State) -> bool {
    match change {
        Change::Table(id) => {
            let table = state.table(&TableRef::Id(*id));
            table.is_ok_and(|table| may_read(peer, table))
        }
        Change::Dropped(_) => peer.role != Role::Client,
        Change::Node(_) => true,
    }
}

/// Checks a request against its principal, before anything of it is done. A table named in it is
/// from then on named by its id: what is done is done to the table that was checked, though its
/// name may pass to another meanwhile.
///
/// # Errors
/// [`Refusal::PermissionDenied`] for what is not this principal's kind to ask;
/// [`Refusal::NotPermitted`], [`Refusal::UnknownTable`].
pub(super) fn check(
    peer: &Principal,
    request: &mut CatalogueRequest,
    state: &State,
) -> Result<(), Refusal> {
    let action = word(request);
    let allowed = match rule(request) {
        Rule::Anyone => true,
        Rule::Clients => matches!(peer.role, Role::Client | Role::Admin),
        Rule::NodeNamed(name) => peer.role == Role::Node && peer.name == name,
        Rule::Node(node) => {
            // A node that is not known is told so by its incarnation, not by its certificate.
            let name = state.node(node).map(|n| n.entry.name.as_str());
            peer.role == Role::Node && name.is_none_or(|name| name == peer.name)
        }
        Rule::Table(table, needs) => {
            *table = TableRef::Id(permitted(peer, table, needs, action, state)?);
            true
        }
        Rule::TableId(table, needs) => {
            permitted(peer, &TableRef::Id(table), needs, action, state)?;
            true
        }
    };
    if allowed {
        return Ok(());
    }
    Err(denied(peer, action))
}

fn denied(peer: &Principal, action: &str) -> Refusal {
    Refusal::PermissionDenied {
        principal: peer.to_string(),
        action: action.replace('_', " "),
    }
}

/// The table, if the principal may do this with it.
fn permitted(
    peer: &Principal,
    table: &TableRef,
    needs: Level,
    action: &str,
    state: &State,
) -> Result<TableId, Refusal> {
    let found = state.table(table);
    let has = found.as_ref().ok().and_then(|record| level(peer, record));
    match found {
        Ok(record) if has >= Some(needs) => return Ok(record.id),
        Err(unknown) if peer.role != Role::Client => return Err(unknown),
        _ if peer.role != Role::Client => return Err(denied(peer, action)),
        _ => {}
    }
    // Its name is told to those only who may see it in a list.
    let named = found.ok().filter(|_| has.is_some());
    Err(Refusal::NotPermitted {
        principal: peer.name.clone(),
        table: named.map_or_else(|| table.to_string(), |record| record.spec.name.clone()),
        needs,
        has,
    })
}

#[cfg(test)]
mod tests {
    use mneme_proto::control::NodeRegistration;

    use super::*;

    fn principal(role: Role, name: &str) -> Principal {
        Principal {
            role,
            name: name.into(),
        }
    }

    /// I-13: nobody speaks for a node but the node, and only clients change tables.
    #[test]
    fn roles_and_names_are_checked() {
        let state = State::default();
        let register = CatalogueRequest::Register(NodeRegistration {
            name: "n1".into(),
            address: "h:1".into(),
            domain: String::new(),
            pools: vec![],
            held: vec![],
        });
        let heartbeat = CatalogueRequest::Heartbeat {
            node: NodeId(1),
            incarnation: 1.into(),
            pools: vec![],
        };
        let cases = [
            (Role::Node, "n1", &register, true),
            (Role::Node, "n2", &register, false),
            (Role::Client, "n1", &register, false),
            (Role::Admin, "n1", &register, false),
            (Role::Node, "n1", &heartbeat, true),
            (Role::Admin, "n1", &heartbeat, false),
            (Role::Node, "n1", &CatalogueRequest::ListTables, true),
        ];
        for (role, name, request, allowed) in cases {
            let checked = check(&principal(role, name), &mut request.clone(), &state);
            assert_eq!(checked.is_ok(), allowed, "{role} {name} {}", word(request));
        }
        let refused = check(&principal(Role::Node, "n2"), &mut register.clone(), &state);
        assert_eq!(
            refused.unwrap_err().to_string(),
            "permission denied: node 'n2' may not register"
        );
    }
}

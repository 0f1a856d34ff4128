//! Who may ask what. The certificate is the principal; a node speaks for itself only.

use mneme_net::{Principal, Role};
use mneme_proto::control::CatalogueRequest;
use mneme_proto::ids::NodeId;
use mneme_proto::refusal::Refusal;

use crate::state::State;

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
    }
}

/// Checks a request against its principal, before anything of it is done.
///
/// # Errors
/// [`Refusal::PermissionDenied`].
pub(super) fn check(
    peer: &Principal,
    request: &CatalogueRequest,
    state: &State,
) -> Result<(), Refusal> {
    let name_of = |node: &NodeId| state.node(*node).map(|n| n.entry.name.as_str());
    let allowed = match request {
        CatalogueRequest::Register(registration) => {
            peer.role == Role::Node && peer.name == registration.name
        }
        CatalogueRequest::Heartbeat { node, .. }
        | CatalogueRequest::Report { node, .. }
        | CatalogueRequest::TakeGenerations { node, .. }
        | CatalogueRequest::NodeTables { node } => {
            // A node that is not known is told so by its incarnation, not by its certificate.
            peer.role == Role::Node && name_of(node).is_none_or(|name| name == peer.name)
        }
        CatalogueRequest::CreateTable { .. }
        | CatalogueRequest::DropTable { .. }
        | CatalogueRequest::ResetTable { .. }
        | CatalogueRequest::BeginLoad { .. }
        | CatalogueRequest::Publish { .. } => peer.role == Role::Client,
        CatalogueRequest::Hello
        | CatalogueRequest::ListTables
        | CatalogueRequest::GetMap { .. }
        | CatalogueRequest::Watch { .. }
        | CatalogueRequest::Status
        | CatalogueRequest::Versions { .. } => true,
    };
    if allowed {
        return Ok(());
    }
    Err(Refusal::PermissionDenied {
        principal: peer.to_string(),
        action: word(request).replace('_', " "),
    })
}

#[cfg(test)]
mod tests {
    use mneme_proto::control::{NodeRegistration, TableRef};
    use mneme_proto::ids::TableId;

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
        let drop_table = CatalogueRequest::DropTable {
            table: TableRef::Id(TableId(1)),
        };
        let cases = [
            (Role::Node, "n1", &register, true),
            (Role::Node, "n2", &register, false),
            (Role::Client, "n1", &register, false),
            (Role::Client, "c", &drop_table, true),
            (Role::Node, "n1", &drop_table, false),
            (Role::Node, "n1", &CatalogueRequest::ListTables, true),
        ];
        for (role, name, request, allowed) in cases {
            let checked = check(&principal(role, name), request, &state);
            assert_eq!(checked.is_ok(), allowed, "{role} {name} {}", word(request));
        }
        let refused = check(&principal(Role::Node, "n2"), &register, &state).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "permission denied: node 'n2' may not register"
        );
    }
}

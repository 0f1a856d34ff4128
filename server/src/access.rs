//! Who may ask what of a node (I-13): every frame is checked against the grants of its table as
//! the node last heard of them. A grant that is taken away ends with the next frame after that.

use std::sync::Arc;

use mneme_net::{Principal, Role};
use mneme_proto::grant::{Grant, Level};
use mneme_proto::ids::TableId;
use mneme_proto::refusal::Refusal;
use rustc_hash::FxHashMap;

use crate::table::Table;

/// The grants of one table. A look at them allocates nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grants(FxHashMap<Box<str>, Level>);

impl Grants {
    /// Those that came with the table's map.
    #[must_use]
    pub fn new(grants: &[Grant]) -> Self {
        let grants = grants.iter();
        Self(
            grants
                .map(|g| (g.principal.as_str().into(), g.level))
                .collect(),
        )
    }

    /// What a client may do.
    #[must_use]
    pub fn level(&self, client: &str) -> Option<Level> {
        self.0.get(client).copied()
    }
}

/// What a principal may do with a table. Rows are a client's business: nodes and members of the
/// catalogue have none with a node yet.
fn level(peer: &Principal, table: &Table) -> Option<Level> {
    match peer.role {
        Role::Admin => Some(Level::Admin),
        Role::Client => table.grants.level(&peer.name),
        Role::Node | Role::Catalogue => None,
    }
}

/// Whether a principal may do this with a table.
#[must_use]
pub fn may(peer: &Principal, table: &Table, needs: Level) -> bool {
    level(peer, table) >= Some(needs)
}

/// Refuses the roles that ask nothing of a node.
///
/// # Errors
/// [`Refusal::PermissionDenied`].
pub fn check_role(peer: &Principal, asked: &str) -> Result<(), Refusal> {
    match peer.role {
        Role::Client | Role::Admin => Ok(()),
        Role::Node | Role::Catalogue => Err(Refusal::PermissionDenied {
            principal: peer.to_string(),
            action: format!("send {asked} requests to a node"),
        }),
    }
}

/// The table of a request after a look at the catalogue, if the principal may do this with it. A
/// client without a grant is told the same where there is no such table.
///
/// # Errors
/// [`Refusal::NotPermitted`]; an admin is told [`Refusal::UnknownTable`]; the catalogue's silence.
pub fn permitted(
    peer: &Principal,
    id: TableId,
    found: Result<Arc<Table>, Refusal>,
    needs: Level,
) -> Result<Arc<Table>, Refusal> {
    let (table, has) = match found {
        Ok(table) => {
            let has = level(peer, &table);
            if has >= Some(needs) {
                return Ok(table);
            }
            let named = has.is_some().then(|| table.spec.name.clone());
            (named, has)
        }
        Err(Refusal::UnknownTable { .. }) if peer.role != Role::Admin => (None, None),
        Err(other) => return Err(other),
    };
    Err(Refusal::NotPermitted {
        principal: peer.name.clone(),
        table: table.unwrap_or_else(|| format!("#{id}")),
        needs,
        has,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{spec, table};

    fn client(name: &str) -> Principal {
        Principal {
            role: Role::Client,
            name: name.into(),
        }
    }

    fn granted(levels: &[(&str, Level)]) -> Arc<Table> {
        let grant = |(name, level): &(&str, Level)| Grant {
            principal: (*name).into(),
            level: *level,
        };
        let grants: Vec<Grant> = levels.iter().map(grant).collect();
        Arc::new(Table {
            grants: Grants::new(&grants).into(),
            ..table(9, spec("t"))
        })
    }

    #[test]
    fn a_level_allows_what_is_below_it() {
        let table = granted(&[("ann", Level::Write)]);
        for (name, level, allowed) in [
            ("ann", Level::Read, true),
            ("ann", Level::Write, true),
            ("ann", Level::Admin, false),
            ("bob", Level::Read, false),
            ("an", Level::Read, false),
        ] {
            let may = may(&client(name), &table, level);
            assert_eq!(may, allowed, "{name} {level}");
        }
        for (role, allowed) in [
            (Role::Admin, true),
            (Role::Node, false),
            (Role::Catalogue, false),
        ] {
            let name = "ann".into();
            assert_eq!(may(&Principal { role, name }, &table, Level::Read), allowed);
        }
    }

    /// I-13: a table that is not granted and one that is not there look the same.
    #[test]
    fn a_name_does_not_leak() {
        let (ann, bob) = (client("ann"), client("bob"));
        let table = granted(&[("ann", Level::Read)]);
        let id = table.id;
        let unknown = || Refusal::UnknownTable { table: "9".into() };
        let hidden = permitted(&bob, id, Ok(Arc::clone(&table)), Level::Read).unwrap_err();
        let gone = permitted(&bob, id, Err(unknown()), Level::Read).unwrap_err();
        assert_eq!(hidden, gone);
        assert!(hidden.to_string().contains("no table '#9'"), "{hidden}");
        let short = permitted(&ann, id, Ok(table), Level::Write).unwrap_err();
        assert_eq!(
            short.to_string(),
            "permission denied: client 'ann' may read table 't', not write it: an admin of it can \
             run `mneme grant t ann write`"
        );
        let admin = Principal {
            role: Role::Admin,
            name: "ops".into(),
        };
        let told = permitted(&admin, id, Err(unknown()), Level::Read).unwrap_err();
        assert_eq!(told, unknown());
    }
}

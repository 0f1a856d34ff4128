//! Grants: what clients may do with a table (I-13). They stand in its record and go with it.

use mneme_proto::control::{Change, TableRef};
use mneme_proto::grant::Level;
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::validate_name;

use crate::limits::GRANTS_MAX;
use crate::state::State;
use crate::state::command::Outcome;

impl State {
    /// Gives a client a level, in place of the one it had, or takes it away. Nodes hear of it as
    /// they do of every change of the table's map.
    pub(super) fn grant(
        &mut self,
        table: &TableRef,
        principal: String,
        level: Option<Level>,
    ) -> Result<Outcome, Refusal> {
        validate_name("principal", &principal)?;
        let record = self.table(table)?;
        let had = record.grants.get(&principal).copied();
        if had == level {
            return Ok(self.done());
        }
        if had.is_none() && record.grants.len() == GRANTS_MAX {
            return Err(Refusal::Limit {
                what: format!("grants of table '{}'", record.spec.name),
                asked: 1,
                used: GRANTS_MAX as u64,
                limit: GRANTS_MAX as u64,
            });
        }
        let id = record.id;
        self.advance();
        let record = self.tables.get_mut(&id).expect("it was found above");
        match level {
            Some(level) => record.grants.insert(principal, level),
            None => record.grants.remove(&principal),
        };
        self.note(Change::Table(id));
        Ok(self.done())
    }
}

//! openraft's conformance suite on the log store and state machine, over a real file.

use mneme_meta::log_store::LogStore;
use mneme_meta::log_store::database::CatalogueStore;
use mneme_meta::raft::{MemberId, TypeConfig};
use mneme_meta::state_machine::StateMachine;
use openraft::StorageError;
use openraft::testing::{StoreBuilder, Suite};
use tempfile::TempDir;

struct InTemporaryDirectory;

impl StoreBuilder<TypeConfig, LogStore, StateMachine, TempDir> for InTemporaryDirectory {
    async fn build(&self) -> Result<(TempDir, LogStore, StateMachine), StorageError<MemberId>> {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let store = CatalogueStore::open(dir.path(), 0).expect("a fresh store opens");
        let machine = StateMachine::open(store.clone()).expect("a fresh store is readable");
        Ok((dir, LogStore::new(store), machine))
    }
}

#[test]
fn openraft_suite() {
    Suite::test_all(InTemporaryDirectory).unwrap();
}

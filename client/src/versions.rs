//! Versions of a sealed table: the published one, the one before, and those that wait.
//!
//! A version is loaded beside the one that is read, published by one command of the catalogue, and
//! can be gone back from (I-8).

use std::time::{Duration, Instant};

use mneme_proto::control::{
    CatalogueRequest, CatalogueResponse, SealedVersion, TableRef, TableVersions,
};
use mneme_proto::ids::TableGeneration;
use mneme_proto::refusal::Refusal;

use crate::client::unexpected;
use crate::error::ClientError;
use crate::table::Table;

impl Table {
    /// Its sealed generations, as the catalogue knows them now.
    ///
    /// # Errors
    /// [`Refusal::UnknownTable`]; [`ClientError::Catalogue`].
    pub async fn versions(&self) -> Result<TableVersions, ClientError> {
        self.versions_until(self.shared().client.deadline(None))
            .await
    }

    async fn versions_until(&self, until: Instant) -> Result<TableVersions, ClientError> {
        let request = CatalogueRequest::Versions {
            table: TableRef::Id(self.id()),
        };
        match self.shared().ask(request, until).await? {
            CatalogueResponse::Versions(versions) => Ok(versions),
            other => Err(unexpected(&other)),
        }
    }

    /// Publishes the newest version that was loaded and left to wait ([`crate::Loader::stage`]);
    /// older ones that wait are forgotten.
    ///
    /// # Errors
    /// [`Refusal::Conflict`] if none waits, or a replica of it changed.
    pub async fn publish(
        &self,
        deadline: Option<Duration>,
    ) -> Result<TableGeneration, ClientError> {
        let until = self.shared().client.deadline(deadline);
        let mut staged = self.versions_until(until).await?.staged;
        let newest = staged.pop().ok_or_else(|| {
            self.no_version("to publish: load one and let it wait (`import --seal --no-publish`)")
        })?;
        let generation = newest.generation;
        self.publish_replicas(generation, newest.replicas, until)
            .await?;
        self.forget_versions(staged).await;
        Ok(generation)
    }

    /// Goes back to the version before the published one; a second call goes forth again.
    ///
    /// # Errors
    /// [`Refusal::Conflict`] if there is none, or a replica of it changed.
    pub async fn rollback(
        &self,
        deadline: Option<Duration>,
    ) -> Result<TableGeneration, ClientError> {
        let until = self.shared().client.deadline(deadline);
        let previous = self.versions_until(until).await?.previous;
        let previous = previous.ok_or_else(|| {
            self.no_version("to go back to: a second one must have been published")
        })?;
        self.publish_replicas(previous.generation, previous.replicas, until)
            .await?;
        Ok(previous.generation)
    }

    fn no_version(&self, why: &str) -> ClientError {
        Refusal::Conflict {
            what: format!("table '{}'", self.spec().name),
            why: format!("it has no version {why}"),
        }
        .into()
    }

    /// Forgets the versions that waited before `generation` did.
    pub(crate) async fn forget_staged_before(
        &self,
        generation: TableGeneration,
    ) -> Result<(), ClientError> {
        let mut staged = self.versions().await?.staged;
        staged.retain(|version| version.generation < generation);
        self.forget_versions(staged).await;
        Ok(())
    }

    async fn forget_versions(&self, versions: Vec<SealedVersion>) {
        let nodes = self.shared().router().routes();
        for version in versions {
            self.abandon(&nodes, self.id(), version.generation).await;
        }
    }
}

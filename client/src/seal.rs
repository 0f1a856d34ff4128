//! Generations: sealing a mutable table, and publishing what was sealed or loaded by one
//! command, so that readers see all of it or nothing (I-8).

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use mneme_proto::control::{
    CatalogueRequest, CatalogueResponse, NodeRequest, NodeResponse, SealedReplica, TableRef,
};
use mneme_proto::ids::{TableGeneration, TableId};

use crate::client::unexpected;
use crate::error::ClientError;
use crate::retry::Tries;
use crate::router::{NodeRoute, Router};
use crate::table::Table;

impl Table {
    /// Copies a mutable table, as it is now, into a sealed generation and publishes it. Pushes
    /// are refused from then on.
    ///
    /// # Errors
    /// `Refusal::TableState`, `Refusal::Limit`, [`ClientError::Unavailable`]; pushes are
    /// taken again then.
    pub async fn seal(&self, deadline: Option<Duration>) -> Result<TableGeneration, ClientError> {
        let until = self.shared().client.deadline(deadline);
        let (generation, router) = self.begin_generation(until).await?;
        let table = router.table;
        let nodes = router.routes();
        let seal =
            |node: &Arc<NodeRoute>| (node.clone(), NodeRequest::SealShards { table, generation });
        let sealed = self
            .ask_nodes(nodes.iter().map(seal).collect(), until)
            .await;
        let (published, forget) = match sealed {
            Ok(answers) => {
                let replicas = sealed_of(answers)?;
                let published = self.publish_replicas(generation, replicas, until).await;
                // Unless the catalogue refused it may be published: not to be forgotten.
                let refused = matches!(published, Err(ClientError::Refused(_)));
                (published, refused)
            }
            Err(error) => (Err(error), true),
        };
        if forget {
            self.abandon(&nodes, table, generation).await;
        }
        published.map(|()| generation)
    }

    /// A generation that nobody has used, and a router of now.
    pub(crate) async fn begin_generation(
        &self,
        until: Instant,
    ) -> Result<(TableGeneration, Arc<Router>), ClientError> {
        let shared = self.shared();
        let request = CatalogueRequest::BeginLoad {
            table: TableRef::Id(self.id()),
        };
        match shared.ask(request, until).await? {
            CatalogueResponse::Load { generation, map } => {
                Ok((generation, shared.store(Router::new(&map)?)))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Asks several nodes at once, and waits for all of them; one that fails fails the whole.
    pub(crate) async fn ask_nodes(
        &self,
        requests: Vec<(Arc<NodeRoute>, NodeRequest)>,
        until: Instant,
    ) -> Result<Vec<(Arc<NodeRoute>, NodeResponse)>, ClientError> {
        let mut asking: FuturesUnordered<_> = requests
            .into_iter()
            .map(|(route, request)| async move {
                let answer = self.ask_node_again(&route, &request, until).await;
                (route, answer)
            })
            .collect();
        let (mut answers, mut failed) = (Vec::new(), None);
        while let Some((route, answer)) = asking.next().await {
            match answer {
                Ok(answer) => answers.push((route, answer)),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(answers),
        }
    }

    /// A request that may be repeated, since a node does it once.
    async fn ask_node_again(
        &self,
        route: &Arc<NodeRoute>,
        request: &NodeRequest,
        until: Instant,
    ) -> Result<NodeResponse, ClientError> {
        let client = &self.shared().client;
        client.budget.earn();
        let mut tries = Tries::new(until);
        loop {
            // The work may take long, so every try may take all of the time.
            tries.begin(Instant::now());
            let error = match self.ask_node(route, request, until).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let again = match &error {
                ClientError::Refused(refusal) => refusal.is_transient(),
                ClientError::Unavailable(_) => true,
                _ => false,
            };
            match tries.pause(Instant::now(), &client.budget, rand::random()) {
                Some(pause) if again => tokio::time::sleep(pause).await,
                _ => return Err(error),
            }
        }
    }

    pub(crate) async fn publish_replicas(
        &self,
        generation: TableGeneration,
        replicas: Vec<SealedReplica>,
        until: Instant,
    ) -> Result<(), ClientError> {
        let shared = self.shared();
        let table = self.id();
        let request = CatalogueRequest::Publish {
            table,
            generation,
            replicas,
        };
        let answer = shared.ask(request, until).await?;
        let CatalogueResponse::Done { .. } = answer else {
            return Err(unexpected(&answer));
        };
        // So that this client reads what it published; others hear of it by their watch.
        let seen = shared.router();
        if let Err(error) = shared.refresh(&seen, until).await {
            tracing::debug!(%error, "published, and no newer map yet");
        }
        Ok(())
    }

    pub(crate) async fn abandon(
        &self,
        nodes: &[Arc<NodeRoute>],
        table: TableId,
        generation: TableGeneration,
    ) {
        let until = Instant::now() + self.shared().client.config.deadline;
        let forget =
            |node: &Arc<NodeRoute>| (node.clone(), NodeRequest::AbandonLoad { table, generation });
        // A node that cannot be told forgets the load by itself after a while.
        if let Err(error) = self
            .ask_nodes(nodes.iter().map(forget).collect(), until)
            .await
        {
            tracing::debug!(%error, "a load was not abandoned on every node");
        }
    }
}

/// The replicas that nodes say they have sealed.
pub(crate) fn sealed_of(
    answers: Vec<(Arc<NodeRoute>, NodeResponse)>,
) -> Result<Vec<SealedReplica>, ClientError> {
    let mut replicas = Vec::new();
    for (route, answer) in answers {
        match answer {
            NodeResponse::Sealed(mine) => replicas.extend(mine),
            other => return Err(crate::table::unexpected(&route, &other)),
        }
    }
    replicas.sort_by_key(|replica| (replica.shard, replica.node));
    Ok(replicas)
}

//! The client: one identity, one way to the catalogue, one link per node, and the tables in use.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use mneme_net::{CatalogueError, CatalogueLink, Endpoint, Identity, LinkOptions};
use mneme_proto::control::{
    CatalogueRequest, CatalogueResponse, ClusterStatus, TableRef, TableSummary,
};
use mneme_proto::grant::{Grant, Level};
use mneme_proto::ids::TableId;
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::{TableKind, TableSpec};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::timeout_at;

use crate::config::ClientConfig;
use crate::error::ClientError;
use crate::limits::{PLANS_KEPT, made_within};
use crate::links::Links;
use crate::map::{TableShared, watch};
use crate::plan::Plan;
use crate::retry::Budget;
use crate::router::Router;
use crate::table::Table;

/// A client of one cluster. Clones are cheap and share everything.
#[derive(Debug, Clone)]
pub struct Client(Arc<Shared>);

/// What all handles of a client share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: ClientConfig,
    pub(crate) endpoint: Endpoint,
    pub(crate) catalogue: CatalogueLink,
    pub(crate) links: Links,
    pub(crate) budget: Budget,
    /// Where work that outlives a call is done.
    pub(crate) runtime: Handle,
    tables: DashMap<TableId, Weak<TableShared>>,
    plans: Mutex<Vec<Plan>>,
    watching: Mutex<Option<AbortHandle>>,
}

impl Client {
    /// Loads the identity and greets the catalogue. Must be called within a tokio runtime, which
    /// then carries the client's links.
    ///
    /// # Errors
    /// [`ClientError::Config`], [`ClientError::Identity`], [`ClientError::Socket`];
    /// [`ClientError::Catalogue`] if no member answers within the deadline, or one turns this
    /// identity away.
    pub async fn connect(config: ClientConfig) -> Result<Self, ClientError> {
        config.validate()?;
        let identity = Identity::load(&config.identity)?;
        let options = LinkOptions {
            segmentation_offload: config.segmentation_offload,
            ..LinkOptions::default()
        };
        let endpoint = Endpoint::dialer(identity, options).map_err(ClientError::Socket)?;
        let shared = Arc::new(Shared {
            catalogue: CatalogueLink::new(endpoint.clone(), config.catalogue.clone()),
            links: Links::new(endpoint.clone(), config.connect_timeout),
            budget: Budget::new(Instant::now()),
            runtime: Handle::current(),
            tables: DashMap::new(),
            plans: Mutex::default(),
            watching: Mutex::default(),
            endpoint,
            config,
        });
        let within = shared.config.deadline.min(shared.config.connect_timeout);
        let hello = shared
            .ask(CatalogueRequest::Hello, Instant::now() + within)
            .await?;
        let CatalogueResponse::Hello { revision, .. } = hello else {
            return Err(unexpected(&hello));
        };
        let watching = tokio::spawn(watch(Arc::downgrade(&shared), revision));
        *lock(&shared.watching) = Some(watching.abort_handle());
        Ok(Self(shared))
    }

    /// The configuration in use.
    #[must_use]
    pub fn config(&self) -> &ClientConfig {
        &self.0.config
    }

    /// A table of the client's tenant, by name.
    ///
    /// # Errors
    /// [`Refusal::UnknownTable`]; [`ClientError::Catalogue`].
    pub async fn table(&self, name: &str) -> Result<Table, ClientError> {
        let request = CatalogueRequest::GetMap {
            table: self.named(name),
        };
        let map = self.0.ask_map(request, self.0.deadline(None)).await?;
        self.open(&map)
    }

    /// Makes a table and waits until its nodes serve it; a dense one's rows are all made then, for
    /// which the deadline is longer the more they are. An empty tenant in `spec` means the
    /// client's own; `shards` 0 asks for the default. [`Table::spec`] then tells what is
    /// effective.
    ///
    /// # Errors
    /// [`Refusal::Schema`] before anything is sent; [`Refusal::TableExists`] and the catalogue's
    /// other refusals; [`ClientError::Catalogue`].
    pub async fn create_table(&self, spec: TableSpec) -> Result<Table, ClientError> {
        let (map, deadline) = self.create(spec, false).await?;
        self.open_served(&map, deadline).await
    }

    /// Makes a table that takes no memory and serves nothing until a generation is loaded and
    /// published ([`Table::load`]), or until it is reset, which makes it a mutable one.
    ///
    /// # Errors
    /// As [`Client::create_table`].
    pub async fn create_table_to_load(&self, spec: TableSpec) -> Result<Table, ClientError> {
        let (map, _) = self.create(spec, true).await?;
        self.open(&map)
    }

    /// The map of a new table, and until when its maker waits for it.
    async fn create(
        &self,
        mut spec: TableSpec,
        loading: bool,
    ) -> Result<(Vec<u8>, Instant), ClientError> {
        if spec.tenant.is_empty() {
            spec.tenant.clone_from(&self.0.config.tenant);
        }
        spec.validate().map_err(Refusal::from)?;
        let deadline = self.0.deadline(None) + making(&spec);
        // The same number in every retry, so that one table is made.
        let request = CatalogueRequest::CreateTable {
            request: rand::random(),
            spec,
            loading,
        };
        Ok((self.0.ask_map(request, deadline).await?, deadline))
    }

    /// Removes a table and its rows.
    ///
    /// # Errors
    /// [`Refusal::UnknownTable`]; [`ClientError::Catalogue`].
    pub async fn drop_table(&self, name: &str) -> Result<(), ClientError> {
        let request = CatalogueRequest::DropTable {
            table: self.named(name),
        };
        match self.0.ask(request, self.0.deadline(None)).await? {
            CatalogueResponse::Done { .. } => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Empties a mutable or lost table, and waits until it is served again.
    ///
    /// # Errors
    /// [`Refusal::UnknownTable`], [`Refusal::TableState`]; [`ClientError::Catalogue`].
    pub async fn reset_table(&self, name: &str) -> Result<Table, ClientError> {
        let request = CatalogueRequest::ResetTable {
            table: self.named(name),
        };
        let deadline = self.0.deadline(None);
        let map = self.0.ask_map(request, deadline).await?;
        self.open_served(&map, deadline).await
    }

    /// Changes options of a table's optimizer, by name, while pushes run: of those, `lr`. The
    /// nodes follow within a message of the catalogue.
    ///
    /// # Errors
    /// [`Refusal::UnknownTable`], [`Refusal::Schema`]; [`ClientError::Catalogue`].
    pub async fn set_table(
        &self,
        name: &str,
        options: &[(String, String)],
    ) -> Result<(), ClientError> {
        let request = CatalogueRequest::SetTable {
            table: self.named(name),
            options: options.to_vec(),
        };
        match self.0.ask(request, self.0.deadline(None)).await? {
            CatalogueResponse::Done { .. } => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Says what another client may do with a table, by the name in its certificate; nothing
    /// without a level. Nodes follow within a message of the catalogue.
    ///
    /// # Errors
    /// [`Refusal::NotPermitted`] unless this client is an admin of the table or of the cluster;
    /// [`Refusal::UnknownTable`], [`Refusal::Schema`], [`Refusal::Limit`];
    /// [`ClientError::Catalogue`].
    pub async fn grant(
        &self,
        name: &str,
        principal: &str,
        level: Option<Level>,
    ) -> Result<(), ClientError> {
        let request = CatalogueRequest::Grant {
            table: self.named(name),
            principal: principal.into(),
            level,
        };
        match self.0.ask(request, self.0.deadline(None)).await? {
            CatalogueResponse::Done { .. } => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// What clients may do with a table, by their names.
    ///
    /// # Errors
    /// [`Refusal::NotPermitted`] unless this client is an admin of the table or of the cluster;
    /// [`Refusal::UnknownTable`]; [`ClientError::Catalogue`].
    pub async fn grants(&self, name: &str) -> Result<Vec<Grant>, ClientError> {
        let request = CatalogueRequest::Grants {
            table: self.named(name),
        };
        match self.0.ask(request, self.0.deadline(None)).await? {
            CatalogueResponse::Grants(grants) => Ok(grants),
            other => Err(unexpected(&other)),
        }
    }

    /// All tables of the cluster that this client may read.
    ///
    /// # Errors
    /// [`ClientError::Catalogue`].
    pub async fn list_tables(&self) -> Result<Vec<TableSummary>, ClientError> {
        match self
            .0
            .ask(CatalogueRequest::ListTables, self.0.deadline(None))
            .await?
        {
            CatalogueResponse::Tables(tables) => Ok(tables),
            other => Err(unexpected(&other)),
        }
    }

    /// The cluster's members, nodes, and the tables that this client may read.
    ///
    /// # Errors
    /// [`ClientError::Catalogue`].
    pub async fn status(&self) -> Result<ClusterStatus, ClientError> {
        match self
            .0
            .ask(CatalogueRequest::Status, self.0.deadline(None))
            .await?
        {
            CatalogueResponse::Status(status) => Ok(status),
            other => Err(unexpected(&other)),
        }
    }

    /// Closes all links and tells the peers. Calls under way fail.
    pub async fn close(self) {
        if let Some(watching) = lock(&self.0.watching).take() {
            watching.abort();
        }
        let deadline = Instant::now() + Duration::from_secs(1);
        self.0.endpoint.close("the client closed", deadline).await;
    }

    fn named(&self, name: &str) -> TableRef {
        TableRef::Name {
            tenant: self.0.config.tenant.clone(),
            name: name.into(),
        }
    }

    /// A handle to the table of this map; handles to one table share its state.
    fn open(&self, map: &[u8]) -> Result<Table, ClientError> {
        let router = Router::new(map)?;
        let id = router.table;
        let mut entry = self.0.tables.entry(id).or_default();
        if let Some(shared) = entry.upgrade() {
            drop(entry);
            shared.store(router);
            return Ok(Table::new(shared));
        }
        let shared = Arc::new(TableShared::new(self.0.clone(), router));
        *entry = Arc::downgrade(&shared);
        Ok(Table::new(shared))
    }

    async fn open_served(&self, map: &[u8], deadline: Instant) -> Result<Table, ClientError> {
        let table = self.open(map)?;
        let shared = table.shared();
        shared
            .until_served(shared.router(), deadline)
            .await?
            .check_served()?;
        Ok(table)
    }
}

impl Shared {
    /// When a call with this option has to end.
    pub(crate) fn deadline(&self, option: Option<Duration>) -> Instant {
        Instant::now() + option.unwrap_or(self.config.deadline)
    }

    /// Asks the catalogue.
    pub(crate) async fn ask(
        &self,
        request: CatalogueRequest,
        deadline: Instant,
    ) -> Result<CatalogueResponse, ClientError> {
        match timeout_at(deadline.into(), self.catalogue.ask(request, deadline)).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(self.silent_catalogue("the deadline passed")),
        }
    }

    /// Asks for something that is answered with a map.
    pub(crate) async fn ask_map(
        &self,
        request: CatalogueRequest,
        deadline: Instant,
    ) -> Result<Vec<u8>, ClientError> {
        match self.ask(request, deadline).await? {
            CatalogueResponse::Map(map) => Ok(map),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn silent_catalogue(&self, last: &str) -> ClientError {
        let seeds: Vec<String> = self
            .config
            .catalogue
            .iter()
            .map(ToString::to_string)
            .collect();
        let (seeds, last) = (seeds.join(","), last.to_owned());
        ClientError::Catalogue(CatalogueError::Unreachable { seeds, last })
    }

    /// Has the maps of those tables looked at that `concerned` picks.
    pub(crate) fn refresh_tables(&self, concerned: impl Fn(&Router) -> bool) {
        self.tables.retain(|_, table| table.strong_count() > 0);
        let tables: Vec<_> = self
            .tables
            .iter()
            .filter_map(|entry| entry.upgrade())
            .collect();
        for table in tables {
            let router = table.router();
            if concerned(&router) {
                table.refresh_soon(&router);
            }
        }
    }

    /// A plan with the room of an earlier one.
    pub(crate) fn plan(self: &Arc<Self>) -> KeptPlan {
        let plan = lock(&self.plans).pop().unwrap_or_default();
        KeptPlan {
            plan,
            home: self.clone(),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(watching) = lock(&self.watching).take() {
            watching.abort();
        }
    }
}

/// A plan that goes back to the client when the call ends.
pub(crate) struct KeptPlan {
    plan: Plan,
    home: Arc<Shared>,
}

impl Deref for KeptPlan {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.plan
    }
}

impl DerefMut for KeptPlan {
    fn deref_mut(&mut self) -> &mut Plan {
        &mut self.plan
    }
}

impl Drop for KeptPlan {
    fn drop(&mut self) {
        let mut kept = lock(&self.home.plans);
        if kept.len() < PLANS_KEPT && !self.plan.is_oversized() {
            kept.push(std::mem::take(&mut self.plan));
        }
    }
}

/// How long nodes may take to make the rows of a new table.
fn making(spec: &TableSpec) -> Duration {
    let rows = match spec.kind {
        TableKind::Hashed => 0,
        TableKind::Dense { rows } => rows,
    };
    let row_bytes = u64::from(spec.row_bytes()) + u64::from(spec.state_bytes());
    made_within(rows.saturating_mul(row_bytes))
}

/// The catalogue answered something else than was asked.
pub(crate) fn unexpected(answer: &CatalogueResponse) -> ClientError {
    let text = format!("{answer:?}");
    let word = text.split([' ', '(', '{']).next().unwrap_or_default();
    ClientError::Unexpected {
        from: "the catalogue".into(),
        what: format!("'{word}'"),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

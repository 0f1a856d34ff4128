//! The same client for callers without a runtime: a thread, a loop, a call that returns.
//!
//! It owns a current-thread runtime and drives it from within each call, so that a call makes
//! no hop to another thread or task. A [`Client`] and its [`Table`]s may be sent to another
//! thread; for speed give every thread a client of its own. Links rest between calls: one that
//! the peer has given up meanwhile is made anew by the next call. Not to be used, nor dropped,
//! within an async runtime.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use mneme_net::BusyPoll;
use mneme_proto::control::{ClusterStatus, SealedReplica, TableSummary, TableVersions};
use mneme_proto::frame::{PushMode, Status};
use mneme_proto::grant::{Grant, Level};
use mneme_proto::ids::{TableGeneration, TableId};
use mneme_proto::map::{TableMap, TableState};
use mneme_proto::schema::TableSpec;
use tokio::runtime::{Builder, Runtime};

use crate::config::{ClientConfig, ConfigError};
use crate::error::ClientError;
use crate::load::{LoadAt, LoadRows};
use crate::options::{PartialPull, PullOptions, PushOptions, PushReport, Values, WhereReport};
use crate::scan::ScanRows;
use crate::table::TableReport;

/// [`crate::Client`] for blocking callers.
#[derive(Debug, Clone)]
pub struct Client {
    inner: crate::Client,
    runtime: Arc<Runtime>,
    busy: Arc<BusyPoll>,
}

/// [`crate::Table`] for blocking callers.
#[derive(Debug, Clone)]
pub struct Table {
    inner: crate::Table,
    runtime: Arc<Runtime>,
    busy: Arc<BusyPoll>,
}

/// [`crate::Loader`] for blocking callers.
#[derive(Debug)]
pub struct Loader {
    inner: crate::Loader,
    runtime: Arc<Runtime>,
}

/// [`crate::Scan`] for blocking callers.
#[derive(Debug)]
pub struct Scan {
    inner: crate::Scan,
    runtime: Arc<Runtime>,
}

impl Client {
    /// See [`crate::Client::connect`].
    ///
    /// # Errors
    /// As there; [`ClientError::Config`] if the system gives no runtime.
    pub fn connect(config: ClientConfig) -> Result<Self, ClientError> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| ConfigError::Value {
                field: "runtime",
                why: e.to_string(),
            })?;
        let busy = BusyPoll::new(Duration::from_micros(config.busy_poll_us));
        let inner = runtime.block_on(crate::Client::connect(config))?;
        runtime.spawn(Arc::clone(&busy).run());
        Ok(Self {
            inner,
            runtime: Arc::new(runtime),
            busy,
        })
    }

    /// See [`crate::Client::config`].
    #[must_use]
    pub fn config(&self) -> &ClientConfig {
        self.inner.config()
    }

    /// See [`crate::Client::table`].
    ///
    /// # Errors
    /// As there.
    pub fn table(&self, name: &str) -> Result<Table, ClientError> {
        let inner = self.runtime.block_on(self.inner.table(name))?;
        Ok(self.handle(inner))
    }

    /// See [`crate::Client::create_table`].
    ///
    /// # Errors
    /// As there.
    pub fn create_table(&self, spec: TableSpec) -> Result<Table, ClientError> {
        let inner = self.runtime.block_on(self.inner.create_table(spec))?;
        Ok(self.handle(inner))
    }

    /// See [`crate::Client::create_table_to_load`].
    ///
    /// # Errors
    /// As there.
    pub fn create_table_to_load(&self, spec: TableSpec) -> Result<Table, ClientError> {
        let inner = self
            .runtime
            .block_on(self.inner.create_table_to_load(spec))?;
        Ok(self.handle(inner))
    }

    /// See [`crate::Client::drop_table`].
    ///
    /// # Errors
    /// As there.
    pub fn drop_table(&self, name: &str) -> Result<(), ClientError> {
        self.runtime.block_on(self.inner.drop_table(name))
    }

    /// See [`crate::Client::reset_table`].
    ///
    /// # Errors
    /// As there.
    pub fn reset_table(&self, name: &str) -> Result<Table, ClientError> {
        let inner = self.runtime.block_on(self.inner.reset_table(name))?;
        Ok(self.handle(inner))
    }

    /// See [`crate::Client::set_table`].
    ///
    /// # Errors
    /// As there.
    pub fn set_table(&self, name: &str, options: &[(String, String)]) -> Result<(), ClientError> {
        self.runtime.block_on(self.inner.set_table(name, options))
    }

    /// See [`crate::Client::grant`].
    ///
    /// # Errors
    /// As there.
    pub fn grant(
        &self,
        name: &str,
        principal: &str,
        level: Option<Level>,
    ) -> Result<(), ClientError> {
        self.runtime
            .block_on(self.inner.grant(name, principal, level))
    }

    /// See [`crate::Client::grants`].
    ///
    /// # Errors
    /// As there.
    pub fn grants(&self, name: &str) -> Result<Vec<Grant>, ClientError> {
        self.runtime.block_on(self.inner.grants(name))
    }

    /// See [`crate::Client::list_tables`].
    ///
    /// # Errors
    /// As there.
    pub fn list_tables(&self) -> Result<Vec<TableSummary>, ClientError> {
        self.runtime.block_on(self.inner.list_tables())
    }

    /// See [`crate::Client::status`].
    ///
    /// # Errors
    /// As there.
    pub fn status(&self) -> Result<ClusterStatus, ClientError> {
        self.runtime.block_on(self.inner.status())
    }

    /// See [`crate::Client::close`].
    pub fn close(self) {
        self.runtime.block_on(self.inner.close());
    }

    fn handle(&self, inner: crate::Table) -> Table {
        Table {
            inner,
            runtime: self.runtime.clone(),
            busy: Arc::clone(&self.busy),
        }
    }
}

impl Table {
    /// Drives a call, polling for its answers ([`BusyPoll`]).
    fn wait<F: Future>(&self, call: F) -> F::Output {
        self.busy.begin();
        let output = self.runtime.block_on(call);
        self.busy.end();
        output
    }

    /// See [`crate::Table::spec`].
    #[must_use]
    pub fn spec(&self) -> Arc<TableSpec> {
        self.inner.spec()
    }

    /// See [`crate::Table::id`].
    #[must_use]
    pub fn id(&self) -> TableId {
        self.inner.id()
    }

    /// See [`crate::Table::state`].
    #[must_use]
    pub fn state(&self) -> TableState {
        self.inner.state()
    }

    /// See [`crate::Table::map`].
    #[must_use]
    pub fn map(&self) -> TableMap {
        self.inner.map()
    }

    /// See [`crate::Table::pulled_row_bytes`].
    #[must_use]
    pub fn pulled_row_bytes(&self, options: &PullOptions) -> usize {
        self.inner.pulled_row_bytes(options)
    }

    /// See [`crate::Table::pull`].
    ///
    /// # Errors
    /// As there.
    pub fn pull(
        &self,
        keys: &[u64],
        out: &mut [u8],
        options: &PullOptions,
    ) -> Result<Vec<Status>, ClientError> {
        self.wait(self.inner.pull(keys, out, options))
    }

    /// See [`crate::Table::pull_into`].
    ///
    /// # Errors
    /// As there.
    pub fn pull_into(
        &self,
        keys: &[u64],
        out: &mut [u8],
        statuses: &mut [Status],
        options: &PullOptions,
    ) -> Result<(), ClientError> {
        self.wait(self.inner.pull_into(keys, out, statuses, options))
    }

    /// See [`crate::Table::pull_f32`].
    ///
    /// # Errors
    /// As there.
    pub fn pull_f32(
        &self,
        keys: &[u64],
        out: &mut [f32],
        options: &PullOptions,
    ) -> Result<Vec<Status>, ClientError> {
        self.wait(self.inner.pull_f32(keys, out, options))
    }

    /// See [`crate::Table::pull_partial`].
    ///
    /// # Errors
    /// As there.
    pub fn pull_partial(
        &self,
        keys: &[u64],
        out: &mut [u8],
        options: &PullOptions,
    ) -> Result<PartialPull, ClientError> {
        self.wait(self.inner.pull_partial(keys, out, options))
    }

    /// See [`crate::Table::push`].
    ///
    /// # Errors
    /// As there.
    pub fn push<'v>(
        &self,
        mode: PushMode,
        keys: &[u64],
        values: impl Into<Values<'v>>,
        options: &PushOptions,
    ) -> Result<PushReport, ClientError> {
        self.wait(self.inner.push(mode, keys, values, options))
    }

    /// See [`crate::Table::where_key`].
    ///
    /// # Errors
    /// As there.
    pub fn where_key(&self, key: u64) -> Result<WhereReport, ClientError> {
        self.runtime.block_on(self.inner.where_key(key))
    }

    /// See [`crate::Table::describe`].
    ///
    /// # Errors
    /// As there.
    pub fn describe(&self) -> Result<TableReport, ClientError> {
        self.runtime.block_on(self.inner.describe())
    }

    /// See [`crate::Table::rows_per_shard`].
    ///
    /// # Errors
    /// As there.
    pub fn rows_per_shard<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k u64>,
    ) -> Result<Vec<u64>, ClientError> {
        self.inner.rows_per_shard(keys)
    }

    /// See [`crate::Table::load`].
    ///
    /// # Errors
    /// As there.
    pub fn load(
        &self,
        rows: LoadRows<'_>,
        deadline: Option<Duration>,
    ) -> Result<Loader, ClientError> {
        let inner = self.runtime.block_on(self.inner.load(rows, deadline))?;
        Ok(Loader {
            inner,
            runtime: self.runtime.clone(),
        })
    }

    /// See [`crate::Table::seal`].
    ///
    /// # Errors
    /// As there.
    pub fn seal(&self, deadline: Option<Duration>) -> Result<TableGeneration, ClientError> {
        self.runtime.block_on(self.inner.seal(deadline))
    }

    /// See [`crate::Table::versions`].
    ///
    /// # Errors
    /// As there.
    pub fn versions(&self) -> Result<TableVersions, ClientError> {
        self.runtime.block_on(self.inner.versions())
    }

    /// See [`crate::Table::publish`].
    ///
    /// # Errors
    /// As there.
    pub fn publish(&self, deadline: Option<Duration>) -> Result<TableGeneration, ClientError> {
        self.runtime.block_on(self.inner.publish(deadline))
    }

    /// See [`crate::Table::rollback`].
    ///
    /// # Errors
    /// As there.
    pub fn rollback(&self, deadline: Option<Duration>) -> Result<TableGeneration, ClientError> {
        self.runtime.block_on(self.inner.rollback(deadline))
    }

    /// See [`crate::Table::scan`].
    ///
    /// # Errors
    /// As there.
    pub fn scan(&self, deadline: Option<Duration>) -> Result<Scan, ClientError> {
        let inner = self.runtime.block_on(self.inner.scan(deadline))?;
        Ok(Scan {
            inner,
            runtime: self.runtime.clone(),
        })
    }
}

impl Loader {
    /// See [`crate::Loader::generation`].
    #[must_use]
    pub fn generation(&self) -> TableGeneration {
        self.inner.generation()
    }

    /// See [`crate::Loader::put`].
    ///
    /// # Errors
    /// As there.
    pub fn put(&mut self, at: LoadAt<'_>, rows: &[u8]) -> Result<(), ClientError> {
        self.runtime.block_on(self.inner.put(at, rows))
    }

    /// See [`crate::Loader::put_bytes`].
    ///
    /// # Errors
    /// As there.
    pub fn put_bytes(&mut self, at: LoadAt<'_>, rows: Bytes) -> Result<(), ClientError> {
        self.runtime.block_on(self.inner.put_bytes(at, rows))
    }

    /// See [`crate::Loader::finish`].
    ///
    /// # Errors
    /// As there.
    pub fn finish(&mut self) -> Result<&[SealedReplica], ClientError> {
        self.runtime.block_on(self.inner.finish())
    }

    /// See [`crate::Loader::publish`].
    ///
    /// # Errors
    /// As there.
    pub fn publish(self) -> Result<TableGeneration, ClientError> {
        self.runtime.block_on(self.inner.publish())
    }

    /// See [`crate::Loader::stage`].
    ///
    /// # Errors
    /// As there.
    pub fn stage(self) -> Result<TableGeneration, ClientError> {
        self.runtime.block_on(self.inner.stage())
    }

    /// See [`crate::Loader::abandon`].
    pub fn abandon(self) {
        self.runtime.block_on(self.inner.abandon());
    }
}

impl Scan {
    /// See [`crate::Scan::next`].
    ///
    /// # Errors
    /// As there.
    #[allow(clippy::should_implement_trait)] // an Iterator has no place for `rows_max`
    pub fn next(&mut self, rows_max: u32) -> Result<Option<ScanRows>, ClientError> {
        self.runtime.block_on(self.inner.next(rows_max))
    }
}

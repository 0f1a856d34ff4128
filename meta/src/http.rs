//! `/healthz` and `/metrics` over plain HTTP, for probes and scrapers. Nothing here changes
//! anything, and no rows or names pass through it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// What the two pages show.
pub trait Probe: Send + Sync + 'static {
    /// Whether the member serves; else a line that says why not.
    ///
    /// # Errors
    /// The line.
    fn health(&self) -> Result<(), String>;

    /// The Prometheus text.
    fn metrics(&self) -> String;
}

/// A running HTTP listener; ends when dropped.
#[derive(Debug)]
pub struct HttpServer {
    addr: SocketAddr,
    task: JoinHandle<()>,
}

impl HttpServer {
    /// Listens on `listen` (port 0: a free one).
    ///
    /// # Errors
    /// The system's, if the address cannot be bound.
    pub async fn bind(listen: SocketAddr, probe: Arc<dyn Probe>) -> io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let addr = listener.local_addr()?;
        let router = Router::new()
            .route("/healthz", get(health))
            .route("/metrics", get(metrics))
            .with_state(probe);
        let task = tokio::spawn(async move {
            // axum's serve retries failed accepts and returns only when it is dropped.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { addr, task })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn health(State(probe): State<Arc<dyn Probe>>) -> impl IntoResponse {
    match probe.health() {
        Ok(()) => (StatusCode::OK, "ok\n".to_string()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

async fn metrics(State(probe): State<Arc<dyn Probe>>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], probe.metrics())
}

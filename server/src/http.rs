//! `/healthz` and `/metrics` over HTTP.

use std::io;
use std::net::SocketAddr;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;

use crate::metrics::Exposed;

/// Binds the address and serves until the runtime ends. Back once it listens, with the address.
///
/// # Errors
/// What the system says of the address.
pub async fn serve(addr: SocketAddr, exposed: Exposed) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(addr).await?;
    let bound = listener.local_addr()?;
    let routes = Router::new()
        .route("/healthz", get(health))
        .route("/metrics", get(metrics))
        .with_state(exposed);
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, routes).await {
            tracing::error!(%addr, %error, "the HTTP service ended");
        }
    });
    Ok(bound)
}

async fn health(State(exposed): State<Exposed>) -> impl IntoResponse {
    if (exposed.ready)() {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
    }
}

async fn metrics(State(exposed): State<Exposed>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let text = exposed.metrics.text(&(exposed.figures)());
    ([(header::CONTENT_TYPE, kind)], text)
}

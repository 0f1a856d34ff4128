//! Dialing by `host:port`: every address that the name resolves to, one after the other.

use std::time::Instant;

use tokio::time::timeout_at;

use crate::addr::HostPort;
use crate::endpoint::Endpoint;
use crate::error::NetError;
use crate::link::Link;
use crate::tls::Expected;

impl Endpoint {
    /// Dials `target`, trying each of its addresses until one answers. The time that is left
    /// is shared out, so that an address that is silent leaves some for those after it.
    ///
    /// # Errors
    /// [`NetError::Resolve`], or what the last address said (see [`Endpoint::connect`]).
    pub async fn connect_host(
        &self,
        target: &HostPort,
        expect: impl Into<Expected>,
        deadline: Instant,
    ) -> Result<Link, NetError> {
        let expect = expect.into();
        let resolve = |why: String| NetError::Resolve {
            target: target.to_string(),
            why,
        };
        let found = timeout_at(deadline.into(), target.resolve()).await;
        let addresses = found
            .map_err(|_| resolve("no answer before the deadline".into()))?
            .map_err(|error| resolve(error.to_string()))?;
        let mut last = resolve("the name has no address".into());
        for (tried, &addr) in addresses.iter().enumerate() {
            let left = deadline.saturating_duration_since(Instant::now());
            let share = left / (addresses.len() - tried) as u32;
            match self
                .connect(addr, expect.clone(), Instant::now() + share)
                .await
            {
                Ok(link) => return Ok(link),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

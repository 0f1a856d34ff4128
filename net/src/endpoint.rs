//! An endpoint: a UDP socket that dials peers and, if bound for it, answers dialers.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant, SystemTime};

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{EndpointConfig, Runtime, TokioRuntime};
use ring::rand::SystemRandom;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout_at;

use crate::cert::CertError;
use crate::error::{HandshakeFault, NetError};
use crate::handshake::{
    ConfigFor, GreetingFault, HandshakeCounts, accept_loop, dial_error, peer_of, read_greeting,
};
use crate::identity::{Identity, Reload, Reloader};
use crate::limits::{
    ACCEPT_QUEUE, INCOMING_BUFFER_BYTES, INCOMING_BUFFER_BYTES_TOTAL, INCOMING_MAX, MTU_BYTES_MAX,
};
use crate::link::{CODE_CLOSED, Link};
use crate::options::{End, LinkOptions, Transports, udp_socket};
use crate::socket::{RandomIds, Socket};
use crate::tls::{self, Expected, Verdict};

/// A UDP socket with an identity. Clones share it. Dropping the last clone stops accepting and
/// watching files; links live on until they are dropped or closed.
#[derive(Debug, Clone)]
pub struct Endpoint(Arc<Inner>);

struct Inner {
    main: quinn::Endpoint,
    local_addr: SocketAddr,
    /// For peers that `main`'s address cannot reach; opened when first needed.
    aside: OnceLock<quinn::Endpoint>,
    options: LinkOptions,
    identity: RwLock<Identity>,
    dialing: Transports,
    serving: Option<Arc<Serving>>,
    reloader: Mutex<Reloader>,
    reloads: AtomicU64,
    reloads_refused: AtomicU64,
    accepted: tokio::sync::Mutex<mpsc::Receiver<Link>>,
    tasks: Mutex<Vec<AbortHandle>>,
}

/// What the server half uses, replaced when certificates are.
struct Serving {
    transports: Transports,
    config: RwLock<quinn::ServerConfig>,
    counts: Arc<HandshakeCounts>,
}

/// Figures of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointStats {
    /// Links open, both ways; one that ended counts for three more round-trip times or so.
    pub links: usize,
    /// Handshakes done as server.
    pub handshakes: u64,
    /// Handshakes failed as server.
    pub handshakes_failed: u64,
    /// New certificates taken.
    pub reloads: u64,
    /// New certificates refused; the old ones stayed.
    pub reloads_refused: u64,
    /// End of the current certificate, seconds since 1970.
    pub cert_not_after_s: u64,
}

impl Endpoint {
    /// Listens on `listen` (port 0: a free one) and dials from there. `[::]` takes IPv4 too.
    /// Must be called within a tokio runtime, which then carries its links.
    ///
    /// # Errors
    /// [`NetError::Cert`] if the identity may not serve; [`NetError::Socket`].
    pub fn bind(
        listen: SocketAddr,
        identity: Identity,
        options: LinkOptions,
    ) -> Result<Self, NetError> {
        if !identity.principal().role.may_serve() {
            return Err(CertError::MayNotServe(identity.principal().clone()).into());
        }
        let transports = Transports::new(&options, End::Server);
        let serving = Arc::new(Serving {
            config: RwLock::new(quic_server_config(&identity)?),
            transports,
            counts: Arc::default(),
        });
        let main = quic_endpoint(listen, &identity, &options, Some(&serving))?;
        let (sender, receiver) = mpsc::channel(ACCEPT_QUEUE);
        let config_for: Arc<ConfigFor> = {
            let serving = serving.clone();
            Arc::new(move |peer| serving.config_for(peer))
        };
        let counts = serving.counts.clone();
        let accepting = tokio::spawn(accept_loop(main.clone(), config_for, counts, sender));
        Self::start(
            main,
            identity,
            options,
            Some(serving),
            receiver,
            vec![accepting.abort_handle()],
        )
    }

    /// Dials only, from a free port, to IPv4 and IPv6. Within a tokio runtime, as
    /// [`Endpoint::bind`].
    ///
    /// # Errors
    /// [`NetError::Socket`].
    pub fn dialer(identity: Identity, options: LinkOptions) -> Result<Self, NetError> {
        let main = dialing_endpoint(&identity, &options)?;
        let (_, receiver) = mpsc::channel(1);
        Self::start(main, identity, options, None, receiver, Vec::new())
    }

    fn start(
        main: quinn::Endpoint,
        identity: Identity,
        options: LinkOptions,
        serving: Option<Arc<Serving>>,
        accepted: mpsc::Receiver<Link>,
        tasks: Vec<AbortHandle>,
    ) -> Result<Self, NetError> {
        let unbound = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let local_addr = main.local_addr().map_err(|source| NetError::Socket {
            addr: unbound,
            source,
        })?;
        let interval = options.reload_interval;
        let inner = Arc::new(Inner {
            main,
            local_addr,
            aside: OnceLock::new(),
            dialing: Transports::new(&options, End::Dialer),
            options,
            identity: RwLock::new(identity),
            serving,
            reloader: Mutex::new(Reloader::new(interval, Instant::now())),
            reloads: AtomicU64::new(0),
            reloads_refused: AtomicU64::new(0),
            accepted: tokio::sync::Mutex::new(accepted),
            tasks: Mutex::new(tasks),
        });
        let watching = tokio::spawn(watch_files(Arc::downgrade(&inner), interval));
        lock(&inner.tasks).push(watching.abort_handle());
        Ok(Self(inner))
    }

    /// The address that the socket is bound to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local_addr
    }

    /// The current identity.
    #[must_use]
    pub fn identity(&self) -> Identity {
        read(&self.0.identity).clone()
    }

    /// The next link of a dialer whose certificate was found good; `None` once the endpoint is
    /// closed, and for one that only dials.
    pub async fn accept(&self) -> Option<Link> {
        self.0.accepted.lock().await.recv().await
    }

    /// Dials `addr` and is back when the peer has accepted this end's certificate too.
    /// `expect` is a role, or a principal where the dialer knows the name.
    ///
    /// # Errors
    /// [`NetError::Unreachable`] if nothing is heard by `deadline`, [`NetError::Deadline`] if
    /// something was; [`NetError::Handshake`] with the reason; [`NetError::Socket`].
    pub async fn connect(
        &self,
        addr: SocketAddr,
        expect: impl Into<Expected>,
        deadline: Instant,
    ) -> Result<Link, NetError> {
        let other = |why: String| NetError::Handshake {
            addr,
            why: HandshakeFault::Other(why),
        };
        let identity = self.identity();
        let verdict = Verdict::default();
        let config = tls::client_config(&identity, expect.into(), verdict.clone())
            .map_err(|e| other(e.to_string()))?;
        let crypto = QuicClientConfig::try_from(config).map_err(|e| other(e.to_string()))?;
        let mut config = quinn::ClientConfig::new(Arc::new(crypto));
        config.transport_config(self.0.dialing.towards(addr));
        // The name is not looked at: principals are checked, not names of hosts.
        let mut connecting = self
            .0
            .socket_towards(addr)?
            .connect_with(config, addr, "mneme")
            .map_err(|e| other(e.to_string()))?;

        let not_after = identity.not_after();
        let connection = match timeout_at(deadline.into(), &mut connecting).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => return Err(dial_error(addr, &error, verdict.get(), not_after)),
            Err(_) => return Err(handshake_unfinished(connecting, addr).await),
        };
        match timeout_at(deadline.into(), read_greeting(&connection)).await {
            Ok(Ok(())) => {}
            Ok(Err(GreetingFault::Lost(error))) => {
                return Err(dial_error(addr, &error, verdict.get(), not_after));
            }
            Ok(Err(GreetingFault::Fault(why))) => return Err(NetError::Handshake { addr, why }),
            Err(_) => {
                let waiting_for = "the peer's greeting";
                return Err(NetError::Deadline { waiting_for });
            }
        }
        let peer = peer_of(&connection).ok_or(NetError::Handshake {
            addr,
            why: HandshakeFault::NoPrincipal,
        })?;
        Ok(Link::new(connection, peer))
    }

    /// Looks at the certificate files now, as on SIGHUP. Links that exist keep theirs.
    ///
    /// # Errors
    /// [`CertError`] of the new files; the old identity stays.
    pub fn reload(&self) -> Result<bool, CertError> {
        self.0
            .reload(|reloader, current| reloader.look(current, SystemTime::now()))
    }

    /// Figures.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        let inner = &self.0;
        let counts = inner.serving.as_ref().map(|serving| &serving.counts);
        let of = |pick: fn(&HandshakeCounts) -> &AtomicU64| {
            counts.map_or(0, |counts| pick(counts).load(Ordering::Relaxed))
        };
        let aside = inner
            .aside
            .get()
            .map_or(0, quinn::Endpoint::open_connections);
        EndpointStats {
            links: inner.main.open_connections() + aside,
            handshakes: of(|counts| &counts.done),
            handshakes_failed: of(|counts| &counts.failed),
            reloads: inner.reloads.load(Ordering::Relaxed),
            reloads_refused: inner.reloads_refused.load(Ordering::Relaxed),
            cert_not_after_s: read(&inner.identity).not_after_s(),
        }
    }

    /// Closes all links, tells the peers, and waits until that is done or `deadline`.
    pub async fn close(&self, why: &str, deadline: Instant) {
        let inner = &self.0;
        for task in lock(&inner.tasks).drain(..) {
            task.abort();
        }
        for endpoint in [Some(&inner.main), inner.aside.get()].into_iter().flatten() {
            endpoint.close(CODE_CLOSED, why.as_bytes());
            // A peer that does not hear it notices by silence.
            let _ = timeout_at(deadline.into(), endpoint.wait_idle()).await;
        }
    }
}

impl Inner {
    /// The socket whose address can reach `peer`.
    fn socket_towards(&self, peer: SocketAddr) -> Result<&quinn::Endpoint, NetError> {
        let (local, peer_ip) = (self.local_addr.ip(), peer.ip().to_canonical());
        let family =
            local.is_ipv4() == peer_ip.is_ipv4() || (local.is_ipv6() && local.is_unspecified());
        let reach = !local.is_loopback() || peer_ip.is_loopback();
        if family && reach {
            return Ok(&self.main);
        }
        if self.aside.get().is_none() {
            // Of two that race here one is kept; the other is closed unused.
            let _ = self
                .aside
                .set(dialing_endpoint(&read(&self.identity), &self.options)?);
        }
        Ok(self.aside.get().expect("it was set above"))
    }

    fn reload(
        &self,
        look: impl FnOnce(&mut Reloader, &Identity) -> Reload,
    ) -> Result<bool, CertError> {
        let current = read(&self.identity).clone();
        let found = look(&mut lock(&self.reloader), &current);
        let refused = match found {
            Reload::Unchanged => return Ok(false),
            Reload::Refused(error) => error,
            Reload::Changed(new) => match self.take(new) {
                Ok(()) => {
                    self.reloads.fetch_add(1, Ordering::Relaxed);
                    return Ok(true);
                }
                Err(error) => error,
            },
        };
        self.reloads_refused.fetch_add(1, Ordering::Relaxed);
        Err(refused)
    }

    /// Uses `new` for links from now on.
    fn take(&self, new: Identity) -> Result<(), CertError> {
        if let Some(serving) = &self.serving {
            let config = quic_server_config(&new)?;
            self.main.set_server_config(Some(config.clone()));
            *serving
                .config
                .write()
                .unwrap_or_else(PoisonError::into_inner) = config;
        }
        *self
            .identity
            .write()
            .unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for task in lock(&self.tasks).drain(..) {
            task.abort();
        }
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint")
            .field("local_addr", &self.local_addr)
            .field("principal", read(&self.identity).principal())
            .finish_non_exhaustive()
    }
}

impl Serving {
    fn config_for(&self, peer: SocketAddr) -> Arc<quinn::ServerConfig> {
        let mut config = read(&self.config).clone();
        config.transport_config(self.transports.towards(peer));
        Arc::new(config)
    }
}

/// What became of a handshake that the deadline ended: silence, or a slow peer.
async fn handshake_unfinished(mut connecting: quinn::Connecting, addr: SocketAddr) -> NetError {
    // There at once if the peer's first TLS message is.
    let heard = tokio::time::timeout(Duration::ZERO, connecting.handshake_data()).await;
    if matches!(heard, Ok(Ok(_))) {
        let waiting_for = "the handshake";
        return NetError::Deadline { waiting_for };
    }
    NetError::Unreachable { addr }
}

/// Looks at the certificate files every `interval`, while the endpoint is there.
async fn watch_files(endpoint: Weak<Inner>, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        let Some(inner) = endpoint.upgrade() else {
            return;
        };
        let look = move || {
            inner.reload(|reloader, current| {
                reloader.poll(current, Instant::now(), SystemTime::now())
            })
        };
        match tokio::task::spawn_blocking(look).await {
            Ok(Ok(true)) => tracing::info!("new certificates are in use"),
            Ok(Err(error)) => tracing::warn!(%error, "new certificates refused, old ones kept"),
            Ok(Ok(false)) | Err(_) => {}
        }
    }
}

fn quic_server_config(identity: &Identity) -> Result<quinn::ServerConfig, CertError> {
    let config = tls::server_config(identity).map_err(|e| CertError::Make(e.to_string()))?;
    let crypto = QuicServerConfig::try_from(config).map_err(|e| CertError::Make(e.to_string()))?;
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    config
        .max_incoming(INCOMING_MAX)
        .incoming_buffer_size(INCOMING_BUFFER_BYTES)
        .incoming_buffer_size_total(INCOMING_BUFFER_BYTES_TOTAL);
    Ok(config)
}

fn quic_endpoint(
    addr: SocketAddr,
    identity: &Identity,
    options: &LinkOptions,
    serving: Option<&Arc<Serving>>,
) -> Result<quinn::Endpoint, NetError> {
    let make = || {
        let socket = TokioRuntime.wrap_udp_socket(udp_socket(addr, options)?)?;
        let mut config = EndpointConfig::new(identity.reset_key.clone());
        config
            .cid_generator(|| Box::new(RandomIds(SystemRandom::new())))
            .max_udp_payload_size(MTU_BYTES_MAX)
            .expect("the limit is within QUIC's own");
        quinn::Endpoint::new_with_abstract_socket(
            config,
            serving.map(|serving| read(&serving.config).clone()),
            Arc::new(Socket(socket)),
            Arc::new(TokioRuntime),
        )
    };
    make().map_err(|source| NetError::Socket { addr, source })
}

/// A socket for dialing: both families, or IPv4 alone on a host without IPv6.
fn dialing_endpoint(
    identity: &Identity,
    options: &LinkOptions,
) -> Result<quinn::Endpoint, NetError> {
    quic_endpoint((Ipv6Addr::UNSPECIFIED, 0).into(), identity, options, None)
        .or_else(|_| quic_endpoint((Ipv4Addr::UNSPECIFIED, 0).into(), identity, options, None))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

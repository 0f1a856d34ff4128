//! The floor of the `quic` path: quinn alone, one stream a call, request of `8 x batch` bytes,
//! answer of `row_bytes x batch` bytes from memory; client and server each on a current-thread
//! runtime of their own thread, MTU 6500, GSO on. No frames, no rows, no checks.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use quinn::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use crate::report::{Figure, measure};

const MTU: u16 = 6500;

fn transport() -> quinn::TransportConfig {
    let mut config = quinn::TransportConfig::default();
    config
        .initial_mtu(MTU)
        .min_mtu(1200)
        .max_concurrent_bidi_streams(1024u32.into())
        .send_window(64 << 20)
        .stream_receive_window((32u32 << 20).into())
        .receive_window((64u32 << 20).into());
    let mut discovery = quinn::MtuDiscoveryConfig::default();
    discovery.upper_bound(MTU);
    config.mtu_discovery_config(Some(discovery));
    config
}

fn endpoint_config() -> Result<quinn::EndpointConfig> {
    let mut config = quinn::EndpointConfig::default();
    config
        .max_udp_payload_size(MTU)
        .context("a legal payload size")?;
    Ok(config)
}

fn bind(server: Option<quinn::ServerConfig>) -> Result<quinn::Endpoint> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    // The kernel clamps what is over its limit; that is the same for every peer.
    socket.set_recv_buffer_size(8 << 20)?;
    socket.set_send_buffer_size(8 << 20)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    let runtime = Arc::new(quinn::TokioRuntime);
    Ok(quinn::Endpoint::new(
        endpoint_config()?,
        server,
        socket.into(),
        runtime,
    )?)
}

/// Starts a server thread that answers every stream with `answer`; returns its address and
/// certificate. The thread ends with the process.
fn serve(answer: Bytes) -> Result<(SocketAddr, CertificateDer<'static>)> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()])?;
    let certificate = made.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let mut server = quinn::ServerConfig::with_single_cert(vec![certificate.clone()], key.into())?;
    server.transport_config(Arc::new(transport()));
    let (address_out, address_in) = std::sync::mpsc::channel();
    std::thread::spawn(move || -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async move {
            let endpoint = bind(Some(server))?;
            address_out.send(endpoint.local_addr()?)?;
            while let Some(incoming) = endpoint.accept().await {
                let answer = answer.clone();
                tokio::spawn(async move {
                    let connection = incoming.await?;
                    while let Ok((mut send, mut receive)) = connection.accept_bi().await {
                        while receive.read_chunk(1 << 20, true).await?.is_some() {}
                        send.write_chunk(answer.clone()).await?;
                        send.finish()?;
                    }
                    anyhow::Ok(())
                });
            }
            Ok(())
        })
    });
    Ok((
        address_in.recv().context("the server thread ended")?,
        certificate,
    ))
}

/// Times the transfer of `batch` rows a call.
///
/// # Errors
/// Whatever quinn says.
pub fn run(row_bytes: usize, batch: usize, seconds: f64) -> Result<Figure> {
    let (address, certificate) = serve(Bytes::from(vec![7; batch * row_bytes]))?;
    let mut roots = quinn::rustls::RootCertStore::empty();
    roots.add(certificate)?;
    let mut client = quinn::ClientConfig::with_root_certificates(Arc::new(roots))?;
    client.transport_config(Arc::new(transport()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let connection = runtime.block_on(async {
        let endpoint = bind(None)?;
        anyhow::Ok(endpoint.connect_with(client, address, "localhost")?.await?)
    })?;
    let request = Bytes::from(vec![1; batch * 8]);
    let mut out = vec![0; batch * row_bytes];
    let figure = measure(batch, seconds, || {
        runtime.block_on(async {
            let (mut send, mut receive) = connection.open_bi().await?;
            send.write_chunk(request.clone()).await?;
            send.finish()?;
            let mut at = 0;
            while let Some(chunk) = receive.read_chunk(usize::MAX, true).await? {
                out[at..at + chunk.bytes.len()].copy_from_slice(&chunk.bytes);
                at += chunk.bytes.len();
            }
            anyhow::ensure!(at == out.len(), "{at} B came, not {}", out.len());
            anyhow::Ok(())
        })
    })?;
    connection.close(0u32.into(), b"done");
    Ok(figure)
}

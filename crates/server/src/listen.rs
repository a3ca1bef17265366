//! Connections: taken, answered, and ended when the server does.
//!
//! Takes a listener and the routes. A client that is slow to send its headers is dropped, the number of connections
//! is bounded, that of one client too, and at the end requests under way have a while to finish.

use crate::{connections::Connections, unstalled::Unstalled};
use axum::{Router, body::Body, extract::ConnectInfo, http::Request};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use std::{convert::Infallible, future::Future, net::SocketAddr, pin::pin, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tower::ServiceExt;

/// How long a client may take to send a request's headers, and to send nothing between two requests.
const HEADERS: Duration = Duration::from_secs(30);
/// How long requests under way have at the end.
const GRACE: Duration = Duration::from_secs(10);
/// Bytes of a request's headers.
const HEADER_BYTES: usize = 64 << 10;

/// Answers requests until `stop`; `stopping` is called then, and requests under way are given time.
pub(crate) async fn listen(
    listener: TcpListener,
    routes: Router,
    stop: impl Future<Output = ()>,
    stopping: impl FnOnce(),
) {
    let mut stop = pin!(stop);
    let graceful = GracefulShutdown::new();
    let connections = Connections::default();
    loop {
        let taken = async {
            let room = connections.room().await;
            (room, listener.accept().await)
        };
        let (room, accepted) = tokio::select! {
            taken = taken => taken,
            () = &mut stop => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                // Who has its share is hung up on: an answer would take time that others wait for.
                let Some(place) = room.and_then(|room| connections.take(room, peer.ip())) else { continue };
                let connection = graceful.watch(connection(stream, peer, routes.clone()));
                tokio::spawn(async move {
                    // A client that breaks the line is its own affair.
                    let _ = connection.await;
                    drop(place);
                });
            }
            // Out of file descriptors, most likely: wait for connections to end.
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
    drop(listener);
    stopping();
    let _ = timeout(GRACE, graceful.shutdown()).await;
}

fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    routes: Router,
) -> impl hyper_util::server::graceful::GracefulConnection<Output = hyper::Result<()>> {
    let _ = stream.set_nodelay(true);
    let answer = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(peer));
        let answer = routes.clone().oneshot(request);
        async move { Ok::<_, Infallible>(answer.await.unwrap_or_else(|never| match never {})) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_buf_size(HEADER_BYTES)
        .serve_connection(TokioIo::new(Unstalled::new(stream)), answer)
}

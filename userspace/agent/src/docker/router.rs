//! The paths of Docker's drivers. Every call is a POST with JSON, and so is its answer.
//!
//! A request that cannot be parsed is answered with 400, an unknown path with 404, and a call that
//! fails with 200 and the error in the body.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use docker::protocol::{
    CreateEndpoint, CreateNetwork, GatewayCheck, Id, MEDIA_TYPE, OfEndpoint, OfNetwork,
};
use docker::{Endpoint, without_gateway};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::driver::{Called, Driver};
use super::ipam::address_spaces;
use crate::http::connections::STOPPING;

/// A driver: the name of the field in which it returns errors.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Network,
    Ipam,
}

impl Kind {
    fn error(self, text: &str) -> Value {
        match self {
            Self::Network => json!({"Err": text}),
            Self::Ipam => json!({"Error": text}),
        }
    }
}

/// What handlers share.
#[derive(Clone)]
struct Shared {
    driver: Arc<Driver>,
    stopped: watch::Receiver<bool>,
}

/// Name under which a call is counted and reported, and what it is about.
type Subject<T> = (&'static str, fn(&T) -> String);

/// Returns a method of the driver as a function of driver and request.
macro_rules! async_fn {
    ($method:ident) => {
        |driver: Arc<Driver>, request| async move { driver.$method(request).await }
    };
}

/// Returns the router of both drivers; once `stopped` is `true`, every call fails.
pub(super) fn router(driver: Arc<Driver>, stopped: watch::Receiver<bool>) -> Router {
    let shared = Shared { driver, stopped };
    network_paths(ipam_paths(Router::new()))
        .route(
            "/Plugin.Activate",
            fixed(json!({"Implements": ["NetworkDriver", "IpamDriver"]})),
        )
        .fallback(|| async { (StatusCode::NOT_FOUND, "there is no such call") })
        .with_state(shared)
}

type Routes = Router<Shared>;
type Method = MethodRouter<Shared>;

fn network_paths(router: Routes) -> Routes {
    let capabilities = json!({
        "Scope": "local", "ConnectivityScope": "local", "GwAllocChecker": true,
    });
    let network_of: fn(&OfNetwork) -> String = |request| request.network.to_string();
    let endpoint_of: fn(&OfEndpoint) -> String =
        |request| interface(&request.network, &request.endpoint);
    let all = NetworkRoutes(router)
        .query("Join", async_fn!(join))
        .query("Leave", async_fn!(leave))
        .query("EndpointOperInfo", async_fn!(endpoint_info))
        .query("GwAllocCheck", |_, request| async move {
            gateway_check(&request)
        })
        .change(
            "DeleteNetwork",
            ("delete-network", network_of),
            async_fn!(delete_network),
        )
        .change(
            "CreateNetwork",
            ("create-network", created_network),
            async_fn!(create_network),
        )
        .change(
            "CreateEndpoint",
            ("add", created_endpoint),
            async_fn!(create_endpoint),
        )
        .change(
            "DeleteEndpoint",
            ("del", endpoint_of),
            async_fn!(delete_endpoint),
        )
        .change(
            "ProgramExternalConnectivity",
            ("publish-ports", endpoint_of),
            async_fn!(publish),
        )
        .change(
            "RevokeExternalConnectivity",
            ("unpublish-ports", endpoint_of),
            async_fn!(revoke),
        );
    all.0
        .route("/NetworkDriver.GetCapabilities", fixed(capabilities))
        .route("/NetworkDriver.DiscoverNew", fixed(json!({})))
        .route("/NetworkDriver.DiscoverDelete", fixed(json!({})))
}

fn ipam_paths(router: Routes) -> Routes {
    let capabilities = json!({"RequiresMACAddress": false, "RequiresRequestReplay": false});
    let of = Kind::Ipam;
    router
        .route("/IpamDriver.GetCapabilities", fixed(capabilities))
        .route(
            "/IpamDriver.GetDefaultAddressSpaces",
            fixed(address_spaces()),
        )
        .route(
            "/IpamDriver.RequestPool",
            call(of, None, async_fn!(request_pool)),
        )
        .route(
            "/IpamDriver.ReleasePool",
            call(of, None, async_fn!(release_pool)),
        )
        .route(
            "/IpamDriver.RequestAddress",
            call(of, None, async_fn!(request_address)),
        )
        .route(
            "/IpamDriver.ReleaseAddress",
            call(of, None, async_fn!(release_address)),
        )
}

/// The routes of the network driver.
struct NetworkRoutes(Routes);

impl NetworkRoutes {
    /// Adds a call that changes nothing.
    fn query<T, A, F, Calling>(self, name: &str, run: F) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        A: Serialize + Send + 'static,
        F: Fn(Arc<Driver>, T) -> Calling + Clone + Send + Sync + 'static,
        Calling: Future<Output = Called<A>> + Send + 'static,
    {
        self.add(name, None, run)
    }

    /// Adds a call that is counted and reported.
    fn change<T, A, F, Calling>(self, name: &str, subject: Subject<T>, run: F) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        A: Serialize + Send + 'static,
        F: Fn(Arc<Driver>, T) -> Calling + Clone + Send + Sync + 'static,
        Calling: Future<Output = Called<A>> + Send + 'static,
    {
        self.add(name, Some(subject), run)
    }

    fn add<T, A, F, Calling>(self, name: &str, subject: Option<Subject<T>>, run: F) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        A: Serialize + Send + 'static,
        F: Fn(Arc<Driver>, T) -> Calling + Clone + Send + Sync + 'static,
        Calling: Future<Output = Called<A>> + Send + 'static,
    {
        let path = format!("/NetworkDriver.{name}");
        Self(self.0.route(&path, call(Kind::Network, subject, run)))
    }
}

fn created_network(request: &CreateNetwork) -> String {
    request.network.to_string()
}

fn created_endpoint(request: &CreateEndpoint) -> String {
    interface(&request.network, &request.endpoint)
}

/// Returns the subject of an endpoint's events: container ID and interface, as for CNI.
fn interface(network: &Id, endpoint: &Id) -> String {
    let key = Endpoint::key(network, endpoint);
    format!("{}/{}", key.container_id, key.ifname)
}

/// Returns which gateways dockerd need not reserve.
fn gateway_check(request: &GatewayCheck) -> Called<Value> {
    let [v4, v6] = without_gateway(&request.options)?;
    Ok(json!({"SkipIPv4": v4, "SkipIPv6": v6}))
}

/// Returns the method of a call that always has the same answer. Its request has no body.
fn fixed(value: Value) -> Method {
    post(move || async move { answer(StatusCode::OK, &value) })
}

/// Returns the method of a call.
fn call<T, A, F, Calling>(kind: Kind, subject: Option<Subject<T>>, run: F) -> Method
where
    T: DeserializeOwned + Send + 'static,
    A: Serialize + Send + 'static,
    F: Fn(Arc<Driver>, T) -> Calling + Clone + Send + Sync + 'static,
    Calling: Future<Output = Called<A>> + Send + 'static,
{
    post(move |State(shared): State<Shared>, body: Body| async move {
        let Shared { driver, stopped } = shared;
        if *stopped.borrow() {
            return answer(StatusCode::OK, &kind.error(STOPPING));
        }
        let request = match driver.app.request_memory.read::<T>(body).await {
            Ok(request) => request,
            Err(error) => {
                return answer(StatusCode::BAD_REQUEST, &kind.error(&error.to_string()));
            }
        };
        // A task of its own, so that a change of the state is finished if dockerd goes away.
        let called = tokio::spawn(async move {
            let begun = Instant::now();
            let about = subject.map(|(name, of)| (name, of(&request.value)));
            let called = run(Arc::clone(&driver), request.value).await;
            if let Some((name, subject)) = about {
                driver.report(name, begun.elapsed(), subject, &called);
            }
            called
        });
        match called.await {
            Ok(Ok(done)) => answer(StatusCode::OK, &done),
            Ok(Err(error)) => answer(StatusCode::OK, &kind.error(&error.to_string())),
            Err(error) => answer(StatusCode::OK, &kind.error(&error.to_string())),
        }
    })
}

fn answer(status: StatusCode, value: &impl Serialize) -> Response {
    let text = serde_json::to_string(value).unwrap_or_default();
    (status, [(CONTENT_TYPE, MEDIA_TYPE)], text).into_response()
}

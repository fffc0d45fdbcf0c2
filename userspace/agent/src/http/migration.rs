//! Requests of a migration from other plugins, and back.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use api::{KeepConnections, KeptConnections, TranslatedConnection};
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use cni::Error;
use steps::TrackedConnection;

use crate::app::App;
use crate::http::failure::Failure;
use crate::http::limits::single_interface;
use crate::http::names;

/// `POST /v1/kept-connections`.
pub(crate) async fn keep_connections(
    State(app): State<Arc<App>>,
    body: Body,
) -> Result<Json<KeptConnections>, Failure> {
    let wanted = app.request_memory.read::<KeepConnections>(body).await?;
    let KeepConnections { addresses, dry_run } = wanted.value;
    let parse = |text: &String| -> Result<IpAddr, Error> {
        text.parse()
            .map_err(|_| Error::decode(format!("{text}: no IP address")))
    };
    let pods: BTreeSet<IpAddr> = addresses.iter().map(parse).collect::<Result<_, _>>()?;
    let found = app.handle.keep_connections(pods, dry_run).await?;
    Ok(Json(KeptConnections {
        kept: found.kept,
        lost: found.lost.iter().map(connection).collect(),
        of_pods: found.of_pods.iter().map(connection).collect(),
    }))
}

/// `POST /v1/attachments/{id}/{ifname}/drain`.
pub(crate) async fn drain_ports(
    State(app): State<Arc<App>>,
    Path((id, ifname)): Path<(String, String)>,
) -> Result<Json<()>, Failure> {
    let records = app.handle.attachments().await?;
    let keys = records.into_iter().map(|record| record.attachment.key);
    let key = single_interface(keys.collect(), &id, Some(&ifname))?;
    app.handle.drain_ports(key).await?;
    Ok(Json(()))
}

fn connection(of: &TrackedConnection) -> TranslatedConnection {
    let original = names::ends(&of.original, true);
    TranslatedConnection {
        client: original.source,
        server: original.destination,
        pod: names::ends(&of.reply, true).source,
    }
}

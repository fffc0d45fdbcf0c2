//! `--web-page`: a page for browsers on the read-only socket, which shows the answers of the API.
//!
//! A browser reaches the socket by a forwarded port (`ssh -L 9465:/run/viaduct/viaduct-ro.sock`),
//! so that the permissions of the socket hold for the page as well. All files are in the program.
//! The page loads nothing from elsewhere, and its policy forbids that.

use std::net::IpAddr;

use axum::Router;
use axum::extract::Request;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::uri::Authority;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::http::failure::foreign_host;

/// The files: path, media type and content.
const FILES: [(&str, &str, &str); 4] = [
    (
        "/",
        "text/html; charset=utf-8",
        include_str!("../../assets/page.html"),
    ),
    (
        "/page.css",
        "text/css; charset=utf-8",
        include_str!("../../assets/page.css"),
    ),
    (
        "/page.js",
        "text/javascript; charset=utf-8",
        include_str!("../../assets/page.js"),
    ),
    (
        "/page.svg",
        "image/svg+xml",
        include_str!("../../assets/page.svg"),
    ),
];

/// Forbids all but the page's own files and requests to the same host, and frames around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Returns the router of the page.
pub(crate) fn router() -> Router {
    FILES
        .into_iter()
        .fold(Router::new(), |router, (path, media_type, content)| {
            router.route(path, get(move || async move { file(media_type, content) }))
        })
}

fn file(media_type: &'static str, content: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, media_type),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        // The page of another version may need other answers.
        (CACHE_CONTROL, "no-cache"),
    ];
    (headers, content).into_response()
}

/// Refuses requests for hosts by the name of a web site: by resolving its name to the address of
/// the forwarded port, a site could read the API from a browser (DNS rebinding).
pub(crate) async fn refuse_foreign_hosts(request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST).cloned();
    match host.as_ref().map(|host| host.to_str().unwrap_or_default()) {
        Some(host) if !is_own_host(host) => foreign_host(host),
        Some(_) | None => next.run(request).await,
    }
}

/// Returns whether a host, with or without port, is an address, `localhost`, or `viaduct` as
/// clients of the socket send it.
fn is_own_host(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else {
        return false;
    };
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']');
    ["localhost", "viaduct"].contains(&name) || address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_served_for_addresses_and_local_names_only() {
        for host in [
            "localhost:9465",
            "localhost",
            "viaduct",
            "127.0.0.1:9465",
            "[::1]:9465",
            "192.0.2.7",
        ] {
            assert!(is_own_host(host), "{host}");
        }
        for host in [
            "example.org",
            "localhost.example.org:9465",
            "127.0.0.1.example.org",
            "",
            "localhost@example.org",
        ] {
            assert!(!is_own_host(host), "{host}");
        }
    }

    /// The policy would block them.
    #[test]
    fn files_of_the_page_have_no_address_of_another_host_and_no_inline_code() {
        for (path, _, content) in FILES {
            let foreign = content
                .replace("http://www.w3.org/2000/svg", "")
                .contains("://");
            assert!(!foreign, "{path}");
            assert!(!content.contains("innerHTML"), "{path}");
        }
        let (_, _, page) = FILES[0];
        assert!(!page.contains("style=") && !page.contains("onclick"));
        assert_eq!(
            page.matches("<script").count(),
            page.matches("<script src=").count()
        );
    }
}

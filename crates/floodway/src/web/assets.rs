//! The page's own files, which are in the program. They say nothing about the switch.

use axum::http::header;
use axum::response::{IntoResponse, Response};

/// A file of the page.
pub struct Asset {
    /// Its path.
    pub path: &'static str,
    kind: &'static str,
    text: &'static str,
}

macro_rules! assets {
    ($($path:literal = $kind:ident $file:literal,)+) => {
        /// All of them.
        pub const ASSETS: &[Asset] = &[
            $(Asset { path: $path, kind: $kind, text: include_str!(concat!("../../web/", $file)) },)+
        ];
    };
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

assets! {
    "/" = HTML "index.html",
    "/page.css" = CSS "page.css",
    "/icon.svg" = SVG "icon.svg",
    "/main.js" = JS "main.js",
    "/feed.js" = JS "feed.js",
    "/dom.js" = JS "dom.js",
    "/format.js" = JS "format.js",
    "/charts.js" = JS "charts.js",
    "/heat.js" = JS "heat.js",
    "/states.js" = JS "states.js",
    "/overview.js" = JS "overview.js",
    "/port.js" = JS "port.js",
    "/flow.js" = JS "flow.js",
    "/events.js" = JS "events.js",
    "/vendor/uplot.js" = JS "vendor/uplot.js",
    "/vendor/uplot.css" = CSS "vendor/uplot.css",
}

impl IntoResponse for &Asset {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, self.kind)], self.text).into_response()
    }
}

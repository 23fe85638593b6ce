//! A router that knows its routes.

use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodFilter, on};

/// A router under construction, with the method and the path of each route.
pub(super) struct Routes<S> {
    router: Router<S>,
    listed: Vec<(&'static str, &'static str)>,
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    /// No route.
    pub(super) fn new() -> Self {
        Self { router: Router::new(), listed: Vec::new() }
    }

    /// With `handler` for requests of `method`, in capitals, for `path`. An unknown method makes none.
    pub(super) fn on<T: 'static>(
        mut self,
        method: &'static str,
        path: &'static str,
        handler: impl Handler<T, S>,
    ) -> Self {
        let filter = match method {
            "GET" => MethodFilter::GET,
            "PUT" => MethodFilter::PUT,
            "PATCH" => MethodFilter::PATCH,
            "POST" => MethodFilter::POST,
            "DELETE" => MethodFilter::DELETE,
            _ => return self,
        };
        self.router = self.router.route(path, on(filter, handler));
        self.listed.push((method, path));
        self
    }

    /// With what handlers share.
    pub(super) fn with_state(self, state: S) -> Routes<()> {
        Routes { router: self.router.with_state(state), listed: self.listed }
    }
}

impl Routes<()> {
    /// With all routes of `other`, too.
    pub(super) fn merge(mut self, other: Self) -> Self {
        self.listed.extend(other.listed);
        Self { router: self.router.merge(other.router), listed: self.listed }
    }

    /// The router.
    pub(super) fn into_router(self) -> Router {
        self.router
    }

    /// Methods and paths of all routes.
    #[cfg(test)]
    pub(super) fn listed(&self) -> &[(&'static str, &'static str)] {
        &self.listed
    }
}

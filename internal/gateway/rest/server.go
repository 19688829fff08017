package rest

import (
	"net/http"
	"strings"

	"google.golang.org/protobuf/proto"
)

// ServerPrefix begins the path of all requests of the API.
const ServerPrefix = "/-/api/v1/"

// ServerRoutes are the routes that are not about one repository. Their path follows ServerPrefix.
var ServerRoutes = []*Route{
	{Method: "GET", Path: "tokens", call: "TokenService.List", ForAll: true, Summary: "List tokens."},
	{Method: "POST", Path: "tokens", call: "TokenService.Mint", ForAll: true, Summary: "Create a token."},
	{Method: "DELETE", Path: "tokens/{token}", call: "TokenService.Revoke", ForAll: true,
		Summary: "Revoke a token, or all tokens of a name."},
	{Method: "GET", Path: "rules", call: "RuleService.Get", ForAll: true, Summary: "Read the rules."},
	{Method: "PUT", Path: "rules", call: "RuleService.Set", ForAll: true, Summary: "Replace the stored rules."},
	{Method: "GET", Path: "rules/test", call: "RuleService.Test", ForAll: true,
		Summary: "Report what a caller may do, and the rules that decide."},
	{Method: "POST", Path: "forget", call: "RuleService.Forget", ForAll: true,
		Summary: "Drop what is cached about a user."},
	{Method: "GET", Path: "events", call: "EventService.List", ForAll: true,
		Summary: "List or stream what happened to the repositories that the caller may read."},
	{Method: "GET", Path: "webhooks", call: "WebhookService.List", ForAll: true, Summary: "List webhooks."},
	{Method: "POST", Path: "webhooks", call: "WebhookService.Add", ForAll: true, Summary: "Add a webhook."},
	{Method: "DELETE", Path: "webhooks/{name}", call: "WebhookService.Remove", ForAll: true,
		Summary: "Remove a webhook that was added by a call."},
	{Method: "GET", Path: "deliveries/{name}", call: "WebhookService.Deliveries", ForAll: true,
		Summary: "List the latest deliveries to a webhook."},
	{Method: "POST", Path: "deliveries/{name}", call: "WebhookService.Redeliver", ForAll: true,
		Summary: "Send one of the latest deliveries to a webhook again."},
}

// FindServer finds the route for a request, of which path follows ServerPrefix. If there are methods, the path is for
// these. Without both there is no such path.
func FindServer(method, path string) (r *Request, methods []string) {
	for _, route := range ServerRoutes {
		keyword := route.keyword()
		argument, hasArgument := strings.CutPrefix(path, keyword+"/")
		if route.Path != keyword && (!hasArgument || argument == "") || route.Path == keyword && path != keyword {
			continue
		}
		if method == route.Method || method == http.MethodHead && route.Method == http.MethodGet {
			return &Request{Route: route, parts: strings.Split(argument, "/")}, nil
		}
		methods = append(methods, route.Method)
	}
	return nil, methods
}

// IsServer reports whether a path of a URL is one of FindServer.
func IsServer(path string) bool {
	path, ok := strings.CutPrefix(path, ServerPrefix)
	r, methods := FindServer(http.MethodGet, path)
	return ok && (r != nil || methods != nil)
}

// ServerMessage makes the message of a request of FindServer.
func (r *Request) ServerMessage(query map[string][]string, body []byte) (proto.Message, error) {
	m := newMessage(r.procedure().Input())
	if names := r.arguments(); len(names) > 0 {
		if err := setField(m.ProtoReflect(), names[0], names[0], r.Argument()); err != nil {
			return nil, err
		}
	}
	if err := r.setQuery(m.ProtoReflect(), query); err != nil || len(body) == 0 {
		return m, err
	}
	return m, decode(body, m.ProtoReflect())
}

// IsEvents reports whether the request is for events, which are for all callers.
func (r *Request) IsEvents() bool { return r.call == "EventService.List" }

// IsForNode reports whether a storage node answers the request.
func (r *Request) IsForNode() bool {
	return r.IsEvents() || strings.HasPrefix(r.call, "WebhookService.")
}

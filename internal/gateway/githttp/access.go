package githttp

import (
	"net/http"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/rest"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// manage answers a request of rest.FindServer for tokens or rules: METHOD /-/api/v1/tokens and others. Only
// callers who administer the whole server may use it.
func (q *request) manage(path string) {
	q.Op = gateway.API
	found, methods := rest.FindServer(q.r.Method, path)
	if methods != nil {
		q.w.Header().Set("Allow", strings.Join(methods, ", "))
		q.refuse(http.StatusMethodNotAllowed, "use "+strings.Join(methods, " or "))
		return
	}
	if found.Method != http.MethodGet {
		q.Op = gateway.APIChange
	}
	if new(http.CrossOriginProtection).Check(q.r) != nil {
		q.fail(fault.New(fault.Denied, "requests of other web pages cannot change anything"))
		return
	}
	a := &apiRequest{request: q, Request: found, memory: q.Memory.Hold(q.Caller(), freeHook)}
	defer func() { a.memory.Shrink(0) }()
	if err := q.identify(); err != nil {
		q.fail(err)
		return
	}
	if q.ID.Anonymous() && !found.IsEvents() {
		q.fail(fault.New(fault.Unauthenticated,
			"authentication required: use an access token as the password (any user name)"))
		return
	}
	service, err := q.handler.Access.For(q.Ctx, q.ID)
	if err != nil && (!found.IsEvents() || !fault.Is(err, fault.Denied)) {
		q.fail(err)
		return
	}
	body, ok := a.readDocument()
	if !ok {
		return
	}
	if found.IsForNode() {
		m, err := found.ServerMessage(q.r.URL.Query(), body)
		if err != nil {
			q.fail(err)
			return
		}
		a.nodeCall(m)
		return
	}
	seat, err := q.Enter()
	if err != nil {
		q.fail(err)
		return
	}
	defer seat.Leave()
	q.Publish()
	q.At(inflight.Working)
	m, err := found.ServerMessage(q.r.URL.Query(), body)
	if err == nil {
		m, err = service.Call(q.Ctx, m)
	}
	if err != nil {
		q.fail(err)
		return
	}
	q.w.Header().Set("Cache-Control", "private, no-store")
	q.json(http.StatusOK, typeJSON, rest.NewObject(m, true))
}

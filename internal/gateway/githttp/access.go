package githttp

import (
	"net/http"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/rest"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
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
	var service *auth.Service
	if !found.IsEvents() {
		err := auth.ErrAnonymous
		if !q.ID.Anonymous() {
			service, err = q.handler.Access.For(q.Ctx, q.ID)
		}
		if err != nil {
			q.fail(err)
			return
		}
	}
	body, ok := a.readDocument()
	if !ok {
		return
	}
	if m, err := found.ServerMessage(q.r.URL.Query(), body); err != nil {
		q.fail(err)
	} else {
		a.callServer(service, m)
	}
}

// callServer makes a call with the message m. service is for calls about tokens and rules.
func (a *apiRequest) callServer(service *auth.Service, m proto.Message) {
	events, isEvents := m.(*packhorsev1.EventServiceListRequest)
	if isEvents && strings.Contains(a.r.Header.Get("Accept"), typeLines) {
		a.streamEvents(events)
		return
	}
	seat, err := a.Enter()
	if err != nil {
		a.fail(err)
		return
	}
	defer seat.Leave()
	a.Publish()
	a.At(inflight.Working)
	response := a.NewResponse()
	switch {
	case isEvents:
		response, err = a.currentEvents(events)
	case a.IsForNode():
		err = a.CallServer(a.Procedure(), m, response)
	default:
		response, err = service.Call(a.Ctx, m)
	}
	if err != nil {
		a.fail(err)
		return
	}
	a.w.Header().Set("Cache-Control", "private, no-store")
	a.json(http.StatusOK, typeJSON, rest.NewObject(response, true))
}

package githttp

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/transport/clients"
)

const (
	typeUploadPackRequest  = "application/x-git-upload-pack-request"
	typeUploadPackResult   = "application/x-git-upload-pack-result"
	typeReceivePackRequest = "application/x-git-receive-pack-request"
	typeReceivePackResult  = "application/x-git-receive-pack-result"

	probe = "0000" // a flush packet
)

// infoRefs answers the first request of a session (gitprotocol-http(5), "Discovering References").
func (q *request) infoRefs(path string) {
	if !q.method(http.MethodGet) || !q.repository(path) {
		return
	}
	q.Op = gateway.Advertise
	query, err := url.ParseQuery(q.r.URL.RawQuery)
	if err != nil {
		q.refuse(http.StatusBadRequest, "bad query")
		return
	}
	switch service := protocol.Service(query.Get("service")); service {
	case protocol.UploadPack:
		q.advertise(service, auth.Read)
	case protocol.ReceivePack:
		q.advertise(service, auth.Write)
	case "":
		q.refuse(http.StatusForbidden, noDumbProtocol)
	default:
		q.refuse(http.StatusForbidden, "unknown service; git-upload-pack and git-receive-pack are supported")
	}
}

// advertise begins a session of a service for callers who may perform its operation.
func (q *request) advertise(service protocol.Service, op auth.Operation) {
	if !q.may(op) {
		return
	}
	session := q.session(service)
	sink := &sink{q: q}
	// Git omits this line in version 2 of fetches. Pushes have no version 2; clients that ask for it could not parse
	// the rest without the line.
	if session.Version != protocol.V2 || service == protocol.ReceivePack {
		sink.prefix = pktline.AppendFlush(pktline.AppendLine(nil, "# service="+string(service)))
	}
	q.respond("application/x-"+string(service)+"-advertisement", sink, gateway.EmptyBody(),
		func(response *gateway.Response) {
			q.Advertise(session, response)
		})
}

// session describes how the client talks to the server.
func (q *request) session(service protocol.Service) node.Session {
	return node.Session{Service: service, Version: protocol.ParseVersion(q.r.Header.Get("Git-Protocol")),
		Stateless: true}
}

// uploadPack answers a fetch request that follows the advertisement.
func (q *request) uploadPack(path string) {
	if !q.method(http.MethodPost) || !q.repository(path) {
		return
	}
	q.Op = gateway.Fetch
	if !q.contentType(typeUploadPackRequest) || !q.mayCall(auth.Read, typeUploadPackResult) {
		return
	}
	body, err := q.readBody()
	if err != nil {
		q.fail(err)
		return
	}
	defer body.Close()
	q.respond(typeUploadPackResult, &sink{q: q}, body, func(response *gateway.Response) {
		q.UploadPack(q.session(protocol.UploadPack), body, response)
	})
}

// receivePack takes a push.
func (q *request) receivePack(path string) {
	if !q.method(http.MethodPost) || !q.repository(path) {
		return
	}
	q.Op = gateway.Push
	if !q.mayCall(auth.Write, typeReceivePackResult) || !q.contentType(typeReceivePackRequest) {
		return
	}
	body, err := q.StreamBody(q.source())
	if err != nil {
		q.fail(err)
		return
	}
	defer body.Close()
	session := q.session(protocol.ReceivePack)
	if q.r.Header.Get("Content-Encoding") == "" { // otherwise it is the length of the packed body
		session.Length = max(q.r.ContentLength, 0)
	}
	q.respond(typeReceivePackResult, &sink{q: q}, body, func(response *gateway.Response) {
		q.ReceivePack(session, body, response)
	})
}

// mayCall is may for a service. Before a request that is larger than http.postBuffer, git asks with a flush packet
// whether the server wants another credential (remote-curl.c, probe_rpc). Git 2.46 to 2.53 omits a credential that has
// an authtype there, and gives up after 401, although it would send the credential with the request itself. Therefore a
// probe without a credential gets an empty response, the same for each repository.
func (q *request) mayCall(op auth.Operation, resultType string) bool {
	err := q.authorize(op)
	switch {
	case err == nil:
		return true
	case fault.Is(err, fault.Unauthenticated) && q.isBareProbe():
		q.send(http.StatusOK, resultType, nil)
	default:
		q.fail(err)
	}
	return false
}

// isBareProbe reports whether the request is a probe without a credential. It reads the body of a request that may be.
func (q *request) isBareProbe() bool {
	if len(q.r.Header["Authorization"]) > 0 || q.r.ContentLength != int64(len(probe)) {
		return false
	}
	body, err := q.readBody()
	if err != nil {
		return false
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	return err == nil && string(text) == probe
}

// contentType reports whether the request's body is of a type, and refuses it otherwise.
func (q *request) contentType(want string) bool {
	kind, _, _ := strings.Cut(q.r.Header.Get("Content-Type"), ";") // Git ignores parameters
	if strings.EqualFold(strings.TrimSpace(kind), want) {
		return true
	}
	q.refuse(http.StatusUnsupportedMediaType, "bad content type; a git client sends "+want)
	return false
}

// source is the request's body as the client sends it.
func (q *request) source() gateway.Source {
	return gateway.Source{
		Reader: q.r.Body, SetDeadline: http.NewResponseController(q.w).SetReadDeadline,
		Encoding: q.r.Header.Get("Content-Encoding"),
	}
}

// readBody reads the body before the request is admitted: clients that send slowly must not use up the concurrency
// limit.
func (q *request) readBody() (*gateway.Body, error) {
	conn := clients.ConnFrom(q.r.Context())
	conn.Receiving()
	defer conn.Running()
	return q.ReadBody(q.source())
}

// limitBody limits the time for a body that is not read to its end: net/http reads the rest before it sends a response.
func (q *request) limitBody() {
	if q.r.Body != http.NoBody && q.ReadStall > 0 {
		_ = http.NewResponseController(q.w).SetReadDeadline(time.Now().Add(q.ReadStall))
	}
}

// respond admits the request, has a node answer it, and ends the response. contentType "" means that it has no body.
func (q *request) respond(contentType string, sink *sink, body *gateway.Body, ask func(*gateway.Response)) {
	seat, err := q.Enter()
	if err != nil {
		q.fail(err)
		return
	}
	defer seat.Leave()
	if contentType != "" {
		q.w.Header().Set("Content-Type", contentType)
	}
	response := gateway.NewResponse(&q.Request, sink, seat, body)
	ask(response)
	if err := response.Finish(); err == nil {
		return
	}
	if !response.Begun() {
		q.fail(q.Err)
		return
	}
	_, reported := errors.AsType[*node.ReportedError](q.Err)
	if _, announced := q.Bytes.Announced(); reported && !announced {
		return
	}
	q.abort()
}

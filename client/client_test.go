package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node serves handlers on a listener, and returns what can be asked to break the connections that there are.
func node(t *testing.T, l net.Listener, handlers ...http.Handler) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	for _, h := range handlers {
		mux.Handle(h.(interface{ path() string }).path(), h)
	}
	s := httptest.NewUnstartedServer(mux)
	if l != nil {
		s.Listener.Close()
		s.Listener = l
	}
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP2(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	return s
}

// procedure is one call that a node serves.
type procedure struct {
	name string
	http.Handler
}

func (p procedure) path() string { return p.name }

func unary[I, O any](name string, answer func(context.Context, *connect.Request[I]) (*O, error)) procedure {
	return procedure{name, connect.NewUnaryHandler(name,
		func(ctx context.Context, r *connect.Request[I]) (*connect.Response[O], error) {
			o, err := answer(ctx, r)
			if err != nil {
				return nil, err
			}
			return connect.NewResponse(o), nil
		})}
}

func stream[I, O any](name string, answer func(context.Context, *I, func(*O) error) error) procedure {
	return procedure{name, connect.NewServerStreamHandler(name,
		func(ctx context.Context, r *connect.Request[I], s *connect.ServerStream[O]) error {
			return answer(ctx, r.Msg, s.Send)
		})}
}

// started is a client of a node that runs until the test ends.
func started(t *testing.T, handlers ...http.Handler) *Client {
	t.Helper()
	s := node(t, nil, handlers...)
	s.Start()
	t.Cleanup(s.Close)
	return open(t, s.URL, Options{})
}

func open(t *testing.T, address string, o Options) *Client {
	t.Helper()
	c, err := New(address, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// list answers with the secret that it was shown, page by page.
func list(_ context.Context, r *connect.Request[packhorsev1.ListRequest]) (*packhorsev1.ListResponse, error) {
	switch r.Msg.GetPageToken() {
	case "":
		return &packhorsev1.ListResponse{Repositories: []string{"a.git", r.Msg.GetPrefix()}, NextPageToken: "2"}, nil
	case "2":
		return &packhorsev1.ListResponse{Repositories: []string{r.Header().Get("Authorization")}}, nil
	}
	return nil, faultrpc.Error(fault.New(fault.Invalid, "this is no page token"))
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	secure := &tls.Config{MinVersion: tls.VersionTLS13}
	for address, want := range map[string]string{
		"127.0.0.1:7420":            "http://127.0.0.1:7420",
		"[::1]:7420":                "http://[::1]:7420",
		"http://node.example:80/":   "http://node.example:80",
		"https://node.example:7420": "https://node.example:7420",
		"unix:/run/node.sock":       "http://localhost /run/node.sock",
	} {
		base, socket, err := parseAddress(address, false)
		if got := strings.TrimSpace(base + " " + socket); err != nil || got != want {
			t.Errorf("%s is %q, %v", address, got, err)
		}
	}
	for _, address := range []string{"", "node", "node.example", "ftp://node:1", "http://node:1/path", "http://u:p@node:1",
		"unix:", ":7420", "http://node:x", "a b:1"} {
		if c, err := New(address, Options{}); err == nil {
			t.Errorf("%q is taken for an address: %v", address, c)
		}
	}
	if base, _, err := parseAddress("node:1", secure != nil); err != nil || base != "https://node:1" {
		t.Errorf("with TLS: %q, %v", base, err)
	}
	if _, err := New("http://node:1", Options{TLS: secure}); err == nil {
		t.Error("TLS is configured, and http is no error")
	}
}

// The same calls by TCP, TLS, and Unix socket, with a secret that changes.
func TestRoads(t *testing.T) {
	t.Parallel()
	calls := unary(packhorsev1connect.RepositoryServiceListProcedure, list)
	tcp, secure := node(t, nil, calls), node(t, nil, calls)
	tcp.Start()
	secure.EnableHTTP2 = true
	secure.StartTLS()
	path := filepath.Join(t.TempDir(), "node.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	unix := node(t, l, calls)
	unix.Start()
	for _, s := range []*httptest.Server{tcp, secure, unix} {
		t.Cleanup(s.Close)
	}
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	for address, config := range map[string]*tls.Config{
		tcp.URL:                         nil,
		tcp.Listener.Addr().String():    nil,
		secure.URL:                      {RootCAs: roots},
		secure.Listener.Addr().String(): {RootCAs: roots},
		"unix:" + path:                  nil,
	} {
		var n atomic.Int64
		c := open(t, address, Options{TLS: config, Secret: func() string { return fmt.Sprint("secret", n.Add(1)) }})
		var got []string
		for path, err := range c.AllRepositories(t.Context(), &packhorsev1.ListRequest{Prefix: "b.git"}) {
			if err != nil {
				t.Fatalf("%s: %v", address, err)
			}
			got = append(got, path)
		}
		if want := []string{"a.git", "b.git", "Bearer secret2"}; !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", address, got, want)
		}
	}
}

// A secret is for the node alone.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	elsewhere := node(t, nil, unary(packhorsev1connect.RepositoryServiceListProcedure,
		func(context.Context, *connect.Request[packhorsev1.ListRequest]) (*packhorsev1.ListResponse, error) {
			t.Error("a call was sent elsewhere")
			return &packhorsev1.ListResponse{}, nil
		}))
	elsewhere.Start()
	t.Cleanup(elsewhere.Close)
	c := started(t, procedure{"/", http.RedirectHandler(elsewhere.URL+packhorsev1connect.RepositoryServiceListProcedure,
		http.StatusTemporaryRedirect)})
	for _, err := range c.AllRepositories(t.Context(), &packhorsev1.ListRequest{}) {
		if err == nil {
			t.Error("a redirect is no error")
		}
	}
}

// TestErrors checks that errors of a node keep their kind and message.
func TestErrors(t *testing.T) {
	t.Parallel()
	var next error
	c := started(t, unary(packhorsev1connect.RepositoryServiceListProcedure,
		func(context.Context, *connect.Request[packhorsev1.ListRequest]) (*packhorsev1.ListResponse, error) {
			return nil, faultrpc.Error(next)
		}))
	for kind := fault.Internal; kind <= fault.Exists; kind++ {
		next = fault.Retry(kind, 1500*time.Millisecond, "as said")
		_, err := c.Repositories().List(t.Context(), connect.NewRequest(&packhorsev1.ListRequest{}))
		if want := faultrpc.Message(next).GetKind(); KindOf(err) != want || IsNotFound(err) != (kind == fault.NotFound) {
			t.Errorf("%v arrives as %v", want, KindOf(err))
		}
		if RetryAfter(err) != 1500*time.Millisecond || !strings.Contains(err.Error(), "as said") {
			t.Errorf("%v, again after %v", err, RetryAfter(err))
		}
		// The code alone says nearly as much.
		if bare := connect.NewError(connect.CodeOf(err), nil); KindOf(bare) != KindOf(err) || RetryAfter(bare) != 0 {
			t.Errorf("code %v is %v", connect.CodeOf(err), KindOf(bare))
		}
	}
	if kind := KindOf(context.DeadlineExceeded); kind != packhorsev1.FaultKind_FAULT_KIND_DEADLINE {
		t.Error(kind)
	}
	if kind := KindOf(context.Canceled); kind != packhorsev1.FaultKind_FAULT_KIND_CANCELLED {
		t.Error(kind)
	}
	if kind := KindOf(errors.New("another")); kind != packhorsev1.FaultKind_FAULT_KIND_UNSPECIFIED ||
		RetryAfter(nil) != 0 || IsNotFound(nil) {
		t.Error(kind)
	}
	gone := open(t, "unix:"+filepath.Join(t.TempDir(), "none"), Options{})
	if _, err := gone.Healthy(t.Context(), ""); KindOf(err) != packhorsev1.FaultKind_FAULT_KIND_UNAVAILABLE {
		t.Errorf("no node: %v", err)
	}
}

func TestLists(t *testing.T) {
	t.Parallel()
	ref := func(name string) *packhorsev1.Ref { return &packhorsev1.Ref{Name: name} }
	ended := make(chan struct{})
	c := started(t,
		stream(packhorsev1connect.RefServiceListProcedure,
			func(ctx context.Context, r *packhorsev1.RefServiceListRequest,
				send func(*packhorsev1.RefServiceListResponse) error) error {
				if r.GetPrefix() == "endless" {
					defer close(ended)
					for send(&packhorsev1.RefServiceListResponse{Refs: []*packhorsev1.Ref{ref("x")}}) == nil {
					}
					return ctx.Err()
				}
				if r.GetPageToken() == "" {
					return errors.Join(send(&packhorsev1.RefServiceListResponse{Refs: []*packhorsev1.Ref{ref("a"), ref("b")}}),
						send(&packhorsev1.RefServiceListResponse{Refs: []*packhorsev1.Ref{ref("c")}, NextPageToken: "2"}))
				}
				return errors.Join(send(&packhorsev1.RefServiceListResponse{Refs: []*packhorsev1.Ref{ref("d")}}),
					faultrpc.Error(fault.New(fault.Corrupt, "broken")))
			}),
		unary(packhorsev1connect.ObjectServiceTreeProcedure,
			func(_ context.Context, r *connect.Request[packhorsev1.TreeRequest]) (*packhorsev1.TreeResponse, error) {
				if r.Msg.GetPageToken() == "" {
					return &packhorsev1.TreeResponse{Entries: []*packhorsev1.TreeEntry{{Mode: 1}}, NextPageToken: "2"}, nil
				}
				return &packhorsev1.TreeResponse{Entries: []*packhorsev1.TreeEntry{{Mode: 2}, {Mode: 3}}}, nil
			}),
		stream(packhorsev1connect.ObjectServiceLogProcedure,
			func(_ context.Context, _ *packhorsev1.LogRequest, send func(*packhorsev1.LogResponse) error) error {
				return errors.Join(send(&packhorsev1.LogResponse{Commits: []*packhorsev1.Commit{{Oid: "1"}, {Oid: "2"}}}),
					send(&packhorsev1.LogResponse{Commits: []*packhorsev1.Commit{{Oid: "3"}}}))
			}),
	)
	var got strings.Builder
	request := &packhorsev1.RefServiceListRequest{Repository: "r"}
	refs := c.AllRefs(t.Context(), request)
	for range 2 { // a sequence can be gone over again
		for ref, err := range refs {
			fmt.Fprint(&got, ref.GetName(), " ")
			if err != nil {
				fmt.Fprint(&got, KindOf(err), " ")
			}
		}
	}
	if want := strings.Repeat("a b c d  FAULT_KIND_CORRUPT ", 2); got.String() != want || request.GetPageToken() != "" {
		t.Errorf("refs: %q", got.String())
	}
	for range c.AllRefs(t.Context(), &packhorsev1.RefServiceListRequest{Prefix: "endless"}) {
		break
	}
	<-ended // leaving the loop ends the call
	got.Reset()
	for entry, err := range c.AllTree(t.Context(), &packhorsev1.TreeRequest{}) {
		fmt.Fprint(&got, entry.GetMode(), err, " ")
	}
	for commit, err := range c.Commits(t.Context(), &packhorsev1.LogRequest{}) {
		fmt.Fprint(&got, commit.GetOid(), err, " ")
	}
	if want := "1 <nil> 2 <nil> 3 <nil> 1<nil> 2<nil> 3<nil> "; got.String() != want {
		t.Errorf("entries and commits: %q", got.String())
	}
	for commit, err := range c.Commits(t.Context(), &packhorsev1.LogRequest{}) {
		if commit.GetOid() != "1" || err != nil {
			t.Error(commit, err)
		}
		break
	}
}

func TestBlob(t *testing.T) {
	t.Parallel()
	parts := []*packhorsev1.BlobResponse{{Header: &packhorsev1.BlobHeader{Oid: "1", Size: 9, Mode: 0o100644},
		Data: []byte("one")}, {}, {Data: []byte("twothree")}}
	var failure atomic.Pointer[fault.Error]
	var empty atomic.Bool
	c := started(t, stream(packhorsev1connect.ObjectServiceBlobProcedure,
		func(_ context.Context, _ *packhorsev1.BlobRequest, send func(*packhorsev1.BlobResponse) error) error {
			if empty.Load() {
				return nil
			}
			for _, part := range parts {
				if err := send(part); err != nil {
					return err
				}
			}
			if f := failure.Load(); f != nil {
				return faultrpc.Error(f)
			}
			return nil
		}))
	for name, read := range map[string]func(*Blob) ([]byte, error){
		"Read": func(b *Blob) ([]byte, error) { return io.ReadAll(struct{ io.Reader }{b}) },
		"WriteTo": func(b *Blob) ([]byte, error) {
			var all bytes.Buffer
			_, err := b.WriteTo(&all)
			return all.Bytes(), err
		},
	} {
		for _, kind := range []packhorsev1.FaultKind{packhorsev1.FaultKind_FAULT_KIND_UNSPECIFIED,
			packhorsev1.FaultKind_FAULT_KIND_CORRUPT} {
			failure.Store(nil)
			if kind != packhorsev1.FaultKind_FAULT_KIND_UNSPECIFIED {
				failure.Store(&fault.Error{Kind: fault.Corrupt, Msg: "broken"})
			}
			b, err := c.OpenBlob(t.Context(), &packhorsev1.BlobRequest{})
			if err != nil {
				t.Fatal(err)
			}
			all, err := read(b)
			if string(all) != "onetwothree" || KindOf(err) != kind || b.OID != "1" || b.Size != 9 || b.Mode != 0o100644 {
				t.Errorf("%s: got %q, %v, %+v; want onetwothree, a fault of kind %v, object 1 of 9 bytes and mode 100644", name,
					all,
					err, b, kind)
			}
			for range 2 {
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	}
	b, err := c.OpenBlob(t.Context(), &packhorsev1.BlobRequest{})
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	if n, err := b.Read(make([]byte, 1)); n != 0 || err == nil || err == io.EOF {
		t.Errorf("after Close: %d, %v", n, err)
	}
	empty.Store(true)
	if b, err := c.OpenBlob(t.Context(), &packhorsev1.BlobRequest{}); err == nil {
		t.Errorf("no message at all is a blob: %+v", b)
	}
}

// A watch comes back after each kind of end that passes, from what it has seen, and ends with an error that does not.
func TestWatchComesBack(t *testing.T) {
	t.Parallel()
	version := func(n uint64) *packhorsev1.Version { return &packhorsev1.Version{Incarnation: "i", Generation: n} }
	var s *httptest.Server
	var asked []string
	seen := make(chan struct{})
	attempt := 0 // of one goroutine after the other
	watch := func(ctx context.Context, r *packhorsev1.WatchRequest, send func(*packhorsev1.WatchResponse) error) error {
		attempt++
		state := ""
		for _, from := range r.GetRepositories() {
			state += fmt.Sprint(from.GetRepository(), from.GetVersion().GetGeneration(), " ")
		}
		asked = append(asked, state)
		switch attempt {
		case 1:
			_ = send(&packhorsev1.WatchResponse{Repository: "a", Version: version(1), Reset_: true})
			_ = send(&packhorsev1.WatchResponse{Repository: "b", Version: version(5)})
			return faultrpc.Error(fault.Retry(fault.Unavailable, time.Millisecond, "draining"))
		case 2:
			_ = send(&packhorsev1.WatchResponse{Repository: "a", Version: version(2)})
			return nil
		case 3:
			_ = send(&packhorsev1.WatchResponse{Repository: "b", Missing: true})
			<-seen // what is under way would be lost with the connection
			s.CloseClientConnections()
			<-ctx.Done()
			return ctx.Err()
		}
		return faultrpc.Error(fault.New(fault.Denied, "not any more"))
	}
	s = node(t, nil, stream(packhorsev1connect.RefServiceWatchProcedure, watch))
	s.Start()
	t.Cleanup(s.Close)
	c := open(t, s.URL, Options{})
	c.pauses = retry.Policy{First: 2, Max: 4}
	request := &packhorsev1.WatchRequest{Repositories: []*packhorsev1.WatchedRepository{{Repository: "a"},
		{Repository: "b", Version: version(4)}}}
	before := proto.CloneOf(request)
	var events []string
	failures := 0
	for event, err := range c.Watch(t.Context(), request) {
		if err != nil {
			failures++
			continue
		}
		events = append(events, fmt.Sprint(event.GetRepository(), event.GetVersion().GetGeneration()))
		if event.GetMissing() {
			close(seen)
		}
	}
	if want := []string{"a1", "b5", "a2", "b0"}; !slices.Equal(events, want) {
		t.Errorf("events %q", events)
	}
	if want := []string{"a0 b4 ", "a1 b5 ", "a2 b5 ", "a2 b0 "}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q", asked)
	}
	if failures != 4 || !proto.Equal(request, before) {
		t.Errorf("%d failures; the request is %v now", failures, request)
	}
}

// TestWatchGivesUp checks that a permanent error ends a watch, without another call.
func TestWatchGivesUp(t *testing.T) {
	t.Parallel()
	for _, code := range []connect.Code{connect.CodeUnauthenticated, connect.CodeUnimplemented, connect.CodeDataLoss,
		connect.CodeInvalidArgument} {
		c := started(t, stream(packhorsev1connect.RefServiceWatchProcedure,
			func(context.Context, *packhorsev1.WatchRequest, func(*packhorsev1.WatchResponse) error) error {
				return connect.NewError(code, errors.New("no"))
			}))
		n := 0
		for _, err := range c.Watch(t.Context(), &packhorsev1.WatchRequest{}) {
			if n++; n > 1 || connect.CodeOf(err) != code {
				t.Fatalf("turn %d of a watch that ends with %v: %v", n, code, err)
			}
		}
	}
}

func TestWatchEnds(t *testing.T) {
	t.Parallel()
	c := started(t, stream(packhorsev1connect.RefServiceWatchProcedure,
		func(ctx context.Context, _ *packhorsev1.WatchRequest, send func(*packhorsev1.WatchResponse) error) error {
			_ = send(&packhorsev1.WatchResponse{Repository: "a"})
			<-ctx.Done()
			return ctx.Err()
		}))
	for range c.Watch(t.Context(), &packhorsev1.WatchRequest{}) {
		break
	}
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	for event, err := range c.Watch(ctx, &packhorsev1.WatchRequest{}) {
		if n++; n == 1 && event.GetRepository() == "a" {
			cancel()
		} else if KindOf(err) != packhorsev1.FaultKind_FAULT_KIND_CANCELLED {
			t.Errorf("got event %v, error %v; want one event of a, and then a fault of kind CANCELLED", event, err)
		}
	}
	if n != 2 {
		t.Errorf("%d turns", n)
	}
	// A node that is not there: the pause ends with the context too.
	gone := open(t, "unix:"+filepath.Join(t.TempDir(), "none"), Options{})
	gone.pauses = retry.Policy{First: time.Hour, Max: time.Hour}
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	n = 0
	for _, err := range gone.Watch(ctx, &packhorsev1.WatchRequest{}) {
		if n++; n == 1 && KindOf(err) == packhorsev1.FaultKind_FAULT_KIND_UNAVAILABLE {
			cancel()
		}
	}
	if n != 1 && n != 2 {
		t.Errorf("%d turns", n)
	}
}

package client_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/client"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// counted is a service whose calls are counted by their version of HTTP.
type counted struct {
	packhorsev1connect.UnimplementedRefServiceHandler
	by [3]atomic.Int32
}

func (*counted) Resolve(context.Context,
	*connect.Request[packhorsev1.ResolveRequest]) (*connect.Response[packhorsev1.ResolveResponse], error) {
	return connect.NewResponse(&packhorsev1.ResolveResponse{}), nil
}

// TestLookupsChooseHTTPVersion checks that look-ups use HTTP/1.1, and HTTP/2 if that fails.
func TestLookupsChooseHTTPVersion(t *testing.T) {
	t.Parallel()
	for name, http1 := range map[string]bool{"both": true, "HTTP/2 alone": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			service := &counted{}
			path, handler := packhorsev1connect.NewRefServiceHandler(service)
			mux := http.NewServeMux()
			mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
				service.by[r.ProtoMajor].Add(1)
				handler.ServeHTTP(w, r)
			})
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var dials atomic.Int32
			server := &http.Server{Handler: mux, Protocols: new(http.Protocols), ConnState: func(_ net.Conn, s http.ConnState) {
				if s == http.StateNew {
					dials.Add(1)
				}
			}}
			server.Protocols.SetHTTP1(http1)
			server.Protocols.SetUnencryptedHTTP2(true)
			served := make(chan struct{})
			go func() { defer close(served); _ = server.Serve(l) }()
			node, err := client.New(l.Addr().String(), client.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { node.Close(); server.Close(); <-served })
			for range 5 {
				if _, err := node.Refs().Resolve(context.Background(),
					connect.NewRequest(&packhorsev1.ResolveRequest{})); err != nil {
					t.Fatal(err)
				}
			}
			version := map[bool]int{true: 1, false: 2}[http1]
			if n := service.by[version].Load(); n != 5 {
				t.Errorf("%d of 5 calls by HTTP/%d", n, version)
			}
			if want := map[bool]int32{true: 1, false: 2}[http1]; dials.Load() != want {
				t.Errorf("%d connections, want %d", dials.Load(), want)
			}
		})
	}
}

// Nothing follows where a node may not send anybody.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	var followed atomic.Int32
	mux := http.NewServeMux()
	mux.Handle("/", http.RedirectHandler("/elsewhere", http.StatusTemporaryRedirect))
	mux.HandleFunc("/elsewhere", func(http.ResponseWriter, *http.Request) { followed.Add(1) })
	server := httptest.NewUnstartedServer(mux)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	node, err := client.New(server.Listener.Addr().String(),
		client.Options{Secret: func() string { return "a secret of sixteen" }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(node.Close)
	if _, err := node.Refs().Resolve(t.Context(), connect.NewRequest(&packhorsev1.ResolveRequest{})); err == nil {
		t.Error("a redirect is an answer")
	}
	if _, err := node.Repositories().Get(t.Context(), connect.NewRequest(&packhorsev1.GetRequest{})); err == nil {
		t.Error("a redirect is an answer")
	}
	if n := followed.Load(); n != 0 {
		t.Errorf("%d calls went elsewhere", n)
	}
}

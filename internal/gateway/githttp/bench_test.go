package githttp_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/githttp"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// BenchmarkHandler is an ls-refs request on its way through the gateway to a node and back, without a network.
func BenchmarkHandler(b *testing.B) {
	routes := router.New(nil)
	if err := routes.Set([]router.Route{{Replicas: []*router.Replica{{Name: "local",
		Node: &fakeNode{serve: echo}}}}}); err != nil {
		b.Fatal(err)
	}
	h := githttp.New(githttp.Options{Gateway: &gateway.Gateway{
		Router: routes, Pump: bulk.NewPump(bulk.PumpOptions{}),
		Lanes:  admit.NewLanes(admit.Sizes{Small: 10, Hit: 10, Cold: 10}),
		Memory: admit.NewBudget("requests", 1<<30), Metrics: gateway.NewMetrics(nil), Log: slog.New(slog.DiscardHandler),
		MaxBody: 1 << 20,
	}})
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequest(http.MethodPost, "/team/app/git-upload-pack", io.NopCloser(strings.NewReader(lsRefs)))
		r.Header.Set("Content-Type", "application/x-git-upload-pack-request")
		r.Header.Set("Git-Protocol", "version=2")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			b.Fatal(w.Code, w.Body)
		}
	}
}

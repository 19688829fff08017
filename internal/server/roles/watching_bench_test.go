package roles

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/githttp"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/operations/observe"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// answering is a node that answers every request with the same short text.
type answering struct{ router.Node }

func (answering) Advertise(_ context.Context, _ git.RepoPath, _ node.Session,
	reply node.ResponseWriter) (node.Outcome, error) {
	_, err := io.WriteString(reply, "0000")
	return node.Outcome{}, err
}

func (answering) UploadPack(_ context.Context, _ git.RepoPath, _ node.Session, request io.Reader,
	reply node.ResponseWriter) (node.Outcome, error) {
	if _, err := io.Copy(io.Discard, request); err != nil {
		return node.Outcome{}, err
	}
	_, err := io.WriteString(reply, "0000")
	return node.Outcome{Command: protocol.CommandLsRefs, Agent: "git/2.39.5", Refs: 1}, err
}

func (answering) ReceivePack(context.Context, git.RepoPath, node.Session, node.Pusher, io.Reader,
	node.ResponseWriter) (node.Outcome, error) {
	return node.Outcome{}, nil
}

// silent is a response writer that discards everything.
type silent struct{ header http.Header }

func (s silent) Header() http.Header         { return s.header }
func (s silent) WriteHeader(int)             {}
func (s silent) Write(p []byte) (int, error) { return len(p), nil }

// BenchmarkWatching is what watching adds to the smallest request: its line in the log, its place on the board, and
// being judged.
func BenchmarkWatching(b *testing.B) {
	const body = "0014command=ls-refs\n0000"
	for _, watched := range []bool{false, true} {
		name := "off"
		o := gateway.Gateway{Log: slog.New(slog.DiscardHandler)}
		if watched {
			name = "on"
			log, err := observe.NewLogger(io.Discard, slog.LevelInfo, "json", false, auth.Redact)
			if err != nil {
				b.Fatal(err)
			}
			o.Log, o.Board, o.SLI = log, inflight.NewBoard(), inflight.NewLevels(inflight.LevelBounds(1), nil)
		}
		b.Run(name, func(b *testing.B) {
			o.Router = router.New(nil)
			if err := o.Router.Set([]router.Route{{Replicas: []*router.Replica{{Name: "local",
				Node: answering{}}}}}); err != nil {
				b.Fatal(err)
			}
			o.Pump, o.Lanes, o.Memory = bulk.NewPump(bulk.PumpOptions{}), admit.NewLanes(admit.Sizes{Small: 10, Hit: 10,
				Cold: 10}), admit.NewBudget("requests", 1<<30)
			o.Metrics, o.MaxBody = gateway.NewMetrics(nil), 1<<20
			h := githttp.New(githttp.Options{Gateway: &o})
			b.ReportAllocs()
			for b.Loop() {
				r := httptest.NewRequest(http.MethodPost, "/team/app/git-upload-pack", io.NopCloser(strings.NewReader(body)))
				r.Header.Set("Content-Type", "application/x-git-upload-pack-request")
				r.Header.Set("Git-Protocol", "version=2")
				h.ServeHTTP(silent{http.Header{}}, r)
			}
		})
	}
}

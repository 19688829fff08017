package remote_test

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

var version2 = node.Session{Version: protocol.V2, Stateless: true}

func lsRefs() []byte {
	b := pktline.AppendLine(nil, "command=ls-refs")
	b = pktline.AppendDelim(pktline.AppendLine(b, "object-format=sha1"))
	return pktline.AppendFlush(pktline.AppendLine(b, "ref-prefix refs/heads/main"))
}

// BenchmarkLsRefs measures a small session over the control API, without the client's own connection.
func BenchmarkLsRefs(b *testing.B) {
	w := newWorld(b, options{})
	w.repo("app.git", 100)
	path, err := git.ParseRepoPath("app")
	w.do(err)
	request := lsRefs()
	var took []time.Duration
	b.ReportAllocs()
	for b.Loop() {
		start := time.Now()
		var out answer
		if _, err := w.remote.UploadPack(context.Background(), path, version2, bytes.NewReader(request),
			&out); err != nil || out.Len() == 0 {
			b.Fatal(err, out.Len())
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs-p50")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "µs-p99")
}

package receivepack

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// BenchmarkMissingLFS measures the check for missing LFS objects in pushes without pointer files.
func BenchmarkMissingLFS(b *testing.B) {
	for _, blobs := range []int{1, 10_000} {
		c := gittest.Init(b)
		var entries bytes.Buffer
		for i := range blobs {
			fmt.Fprintf(&entries, "blob\nmark :%d\ndata <<E\nfile %d, with a line of text for the size\nE\n", i+1, i)
		}
		fmt.Fprint(&entries, "commit refs/heads/main\ncommitter a <a@example.com> 0 +0000\ndata <<E\nm\nE\n")
		for i := range blobs {
			fmt.Fprintf(&entries, "M 644 :%d d%d/f%d\n", i+1, i%100, i)
		}
		c.GitIn(entries.String(), "fast-import", "--quiet")
		id := c.ID("main")
		packed := c.GitIn(id.String()+"\n", "pack-objects", "--revs", "--stdout", "-q")
		for _, policy := range []LFSPolicy{AllowMissingLFS, RefuseMissingLFS} {
			b.Run(fmt.Sprintf("blobs=%d/%s", blobs, policy), func(b *testing.B) {
				w := newWorld(b, Options{MissingLFS: policy})
				w.lfs = lfsObjects{}.batch
				for i := 0; b.Loop(); i++ {
					request := pktline.AppendFlush(pktline.AppendLine(nil, fmt.Sprintf(
						"%040d %v refs/heads/b%d\x00report-status side-band-64k", 0, id, i)))
					session := node.Session{Service: protocol.ReceivePack, Stateless: true}
					target := w.target()
					outcome, err := w.server.Serve(context.Background(), target, session, tester,
						io.MultiReader(bytes.NewReader(request), bytes.NewReader([]byte(packed))), &recorder{})
					if err != nil || len(outcome.Push.Updates) != 1 {
						b.Fatal(err, outcome.Push.Updates)
					}
					b.StopTimer()
					w.Git("update-ref", "-d", fmt.Sprintf("refs/heads/b%d", i))
					b.StartTimer()
				}
			})
		}
	}
}

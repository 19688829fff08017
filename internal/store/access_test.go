package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// TestAccessLog appends through two nodes. A reader gets the same changes from any record on, and only two checkpoints
// are left.
func TestAccessLog(t *testing.T) {
	t.Parallel()
	b, one, _ := newForkWorld(t)
	nodes := []*Store{one.Store, newGitNode(t, b, receivepack.Options{}, named("other")).Store}
	all := ""
	for i := range uint64(5*node.CheckpointEvery + 3) {
		s := nodes[i%2]
		var checkpoint []byte
		if (i+1)%node.CheckpointEvery == 0 {
			checkpoint = []byte(all)
		}
		change := fmt.Sprintf(`"%d"`, i+1)
		if won, err := s.AppendAccess(t.Context(), i, []byte(change), checkpoint); err != nil || !won {
			t.Fatalf("record %d: %v %v", i+1, won, err)
		}
		all += change
		if won, err := nodes[(i+1)%2].AppendAccess(t.Context(), i, []byte(`"late"`), nil); err != nil || won {
			t.Fatalf("record %d again: %v %v", i+1, won, err)
		}
	}
	for _, s := range append(nodes, newGitNode(t, b, receivepack.Options{}, named("new")).Store) {
		for _, after := range []uint64{0, 1, 3*node.CheckpointEvery - 1, 5 * node.CheckpointEvery} {
			got, err := s.ReadAccess(t.Context(), after)
			text := string(got.Checkpoint)
			for _, change := range got.Changes {
				text += string(change)
			}
			if err != nil || !strings.HasSuffix(all, text) || got.Checkpoint != nil && text != all || text == "" {
				t.Errorf("after %d: %v, %d bytes of %d", after, err, len(text), len(all))
			}
		}
	}
	if won, err := one.AppendAccess(t.Context(), 0, []byte("1"), []byte("1")); won || err != nil {
		t.Errorf("a checkpoint of nothing: %v %v", won, err)
	}
	checkpoints := 0
	for _, key := range b.Keys() {
		if strings.HasPrefix(key, accessCheckpoints) {
			checkpoints++
		}
	}
	if checkpoints != 2 {
		t.Errorf("%d checkpoints, want 2", checkpoints)
	}
}

package remote_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
)

// A node may have forgotten the side channel of an earlier transfer. The error has a kind of its own, and the same node
// gets the request once more. There is no second request if a new side channel is unknown.
func TestStaleChannel(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var transfers []uint64
	n := newHostile(t, func(c *hostileCall) error {
		mu.Lock()
		first := len(transfers) == 0
		mu.Unlock()
		if err := c.send(partBulk); err != nil {
			return err
		}
		m, err := c.stream.Receive()
		if err != nil {
			return err
		}
		road := m.GetDataPath().GetSideChannel()
		mu.Lock()
		transfers = append(transfers, road.GetTransfer())
		mu.Unlock()
		if !first {
			return faultrpc.Error(fault.New(fault.Unavailable, "there is no such side channel"), &internalv1.Outcome{})
		}
		channel, err := c.channels.Claim(c.ctx, road.GetName(), road.GetTransfer(), "gateway")
		if err != nil {
			return err
		}
		defer channel.Release()
		sender := channel.Send(4)
		if _, err := sender.Write([]byte("pack")); err != nil {
			return err
		}
		if err := sender.End(nil); err != nil {
			return err
		}
		return c.send(partEnd)
	})
	repo, _ := git.ParseRepoPath("app")
	for i, want := range []struct{ fails, stale bool }{{false, false}, {true, true}, {true, false}} {
		out := &answer{}
		_, err := n.UploadPack(context.Background(), repo, version2, bytes.NewReader(lsRefs()), out)
		_, stale := errors.AsType[*node.StaleConnError](err)
		if (err != nil) != want.fails || stale != want.stale || want.fails && !fault.Is(err, fault.Unavailable) {
			t.Errorf("transfer %d: %v, stale: %v", i+1, err, stale)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(transfers) != 3 || transfers[0] != 1 || transfers[1] != 2 || transfers[2] != 1 {
		t.Errorf("the channels' transfers were numbered %d", transfers)
	}
}

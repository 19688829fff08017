package mirror

import (
	"context"
	"io"
	"os"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// growing is a file that one goroutine writes, while any number of followers send it to clients. The goroutine and the
// followers are its users.
type growing struct {
	free func() // is called after the last user

	mu      sync.Mutex
	users   int
	ended   bool          // nothing more will come
	err     error         // why the file is incomplete; valid if ended
	changed chan struct{} // closed at the next change; nil: no follower waits
}

// acquire adds a user.
func (g *growing) acquire() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.users++
}

// release removes a user.
func (g *growing) release() {
	g.mu.Lock()
	g.users--
	unused := g.users == 0
	g.mu.Unlock()
	if unused {
		g.free()
	}
}

// change changes the state and wakes the waiting followers.
func (g *growing) change(do func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	do()
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}

// follow calls send now, after each change and after each tick, until it is done.
func (g *growing) follow(ctx context.Context, tick <-chan time.Time, send func() (done bool, err error)) error {
	for {
		g.mu.Lock()
		if g.changed == nil {
			g.changed = make(chan struct{})
		}
		changed := g.changed
		g.mu.Unlock()
		if done, err := send(); done || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-tick:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sendFile sends the bytes between two offsets of a file to a client.
func sendFile(response node.ResponseWriter, file *os.File, from, to int64) (n int64, err error) {
	section := bulk.Section{File: file, Offset: from, N: to - from}
	n, err = io.Copy(response, &section)
	if section.Err() != nil {
		return n, section.Err()
	}
	if err != nil {
		err = &node.ClientConnError{Err: err}
	}
	return n, err
}

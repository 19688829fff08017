package roles

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/packhorse-git/packhorse/internal/mirror"
	"github.com/packhorse-git/packhorse/internal/mirror/forge"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/server/config"
)

// TestMirrorTables applies changed tables. Clients of unchanged origins stay, and those of removed ones are closed.
func TestMirrorTables(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	node, err := storage.New(nil, storage.Options{Root: t.TempDir(), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("correct-horse-battery-staple\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := &mirrors{metrics: origin.NewMetrics(nil), log: log}
	if m.Mirrors, err = mirror.New(mirror.Options{Node: node, State: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	defer m.Mirrors.Close()
	m.hooks = forge.NewReceiver(forge.Options{Log: log})
	defer m.hooks.Close()
	defer func() { _ = closeOrigins(m.origins) }()

	a := mirrorTable("https://a.example/", "a")
	b := mirrorTable("https://b.example/", "b")
	if err := m.apply([]config.MirrorConfig{a, b}); err != nil || len(m.origins) != 2 || m.hooks.Accepts("github") {
		t.Fatalf("apply: %v, %d origins, want none and 2, and no webhooks", err, len(m.origins))
	}
	first := m.origins[originKey(&a)]
	a.Deny, a.Fresh, a.WebhookSecretFile = []string{"x"}, "1m", secret
	two := a
	two.To = "two"
	if err := m.apply([]config.MirrorConfig{a, two}); err != nil || len(m.origins) != 1 ||
		m.origins[originKey(&a)] != first || !m.hooks.Accepts("github") {
		t.Errorf("apply without b: %v, %d origins, want none and the first one, and webhooks", err, len(m.origins))
	}
	bad := b
	bad.CA = filepath.Join(t.TempDir(), "missing")
	if err := m.apply([]config.MirrorConfig{bad}); err == nil || m.origins[originKey(&a)] != first {
		t.Errorf("apply of a table without its file: %v, want an error and the earlier tables", err)
	}
	a.Requests++
	if err := m.apply([]config.MirrorConfig{a}); err != nil || m.origins[originKey(&a)] == first {
		t.Errorf("apply of a changed origin: %v, want a new client", err)
	}
}

// mirrorTable returns a table of an origin.
func mirrorTable(from, to string) config.MirrorConfig {
	return config.MirrorConfig{From: from, To: to, Fresh: config.MirrorAlways, Auth: config.MirrorByOrigin, Requests: 1}
}

package config

import (
	"strings"
	"testing"
)

func TestRemovedKeys(t *testing.T) {
	t.Parallel()
	removed := func(key string) string { return "FILE:2: " + key + " was removed: " + removed[key] }
	for text, want := range map[string]string{
		"[app]\nfast = 1":                  removed("app.fast"),
		"[app]\nfast = 1\nsticky = true":   removed("app.fast"),
		"[app]\nreserve = { slots = 3 }":   removed("app.reserve"),
		"[[app.pool]]\nname = 1\nfast = 2": `unknown key "app.pool.fast"`,
	} {
		_, _, err := loadText(t, text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error = %v, want %q", text, err, want)
		}
	}
	if _, _, err := loadText(t, "[app]\nfast = 1\nsticky = true"); strings.Count(err.Error(), "was removed") != 2 {
		t.Errorf("error = %v, want both keys", err)
	}
}

func TestRemovedKeysDoNotExist(t *testing.T) {
	t.Parallel()
	for _, s := range Keys() {
		for key := s.Key; key != ""; key = above(key) {
			if removed[key] != "" {
				t.Errorf("the key %s exists and was removed", key)
			}
		}
	}
}

package config

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// TestTags checks the tags of all fields: the defaults are within their bounds, and all bounds can be parsed.
func TestTags(t *testing.T) {
	t.Parallel()
	for _, s := range Keys() {
		if low, high, ok := s.bounds(); ok {
			for _, bound := range []string{strings.TrimPrefix(low, ">"), high} {
				if bound != "" && math.IsNaN(s.parse(bound)) {
					t.Errorf("%s: bound %q of the range %q cannot be parsed", s.Key, bound, s.tag.Get("range"))
				}
			}
		}
		if s.tag.Get("values") != "" && s.Value.Kind() != reflect.String {
			t.Errorf("%s has the tag values and the type %s, want string", s.Key, s.Value.Type())
		}
		f := &Findings{}
		if s.check(f); f.Err() != nil {
			t.Errorf("the default: %v", f.Err())
		}
	}
	defaults := DefaultConfig()
	if got, want := defaults.Fetch.Policy(), repo.DefaultPolicy(); !reflect.DeepEqual(*got, want) {
		t.Errorf("policy of the defaults = %+v, want that of package repo, %+v", *got, want)
	}
}

// TestBounds checks values at and beyond the bounds of each kind of range.
func TestBounds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ key, value, want string }{
		{"index.max_repository_files", "1", ""},
		{"git.slots", "1025", "git.slots is 1025; it has to be from 0 to 1024"},
		{"index.max_repository_files", "16777216", ""},
		{"index.max_repository_files", "16777217",
			"index.max_repository_files is 16777217; it has to be from 1 to 16777216"},
		{"http.max_body", "64KiB", ""},
		{"http.max_body", "1KiB", "http.max_body is 1KiB; it has to be at least 64KiB"},
		{"http.idle_timeout", "1ns", ""},
		{"http.idle_timeout", "0s", "http.idle_timeout is 0s; it has to be more than 0s"},
		{"tracing.ratio", "1", ""},
		{"tracing.ratio", "NaN", "tracing.ratio is NaN; it has to be from 0 to 1"},
		{"log.level", "loud", `log.level is "loud"; it has to be one of ["debug" "info" "warn" "error"]`},
	} {
		c := DefaultConfig()
		for _, s := range Settings(&c) {
			if s.Key != tt.key {
				continue
			}
			if err := s.Set(tt.value); err != nil {
				t.Fatal(err)
			}
			f, got := &Findings{}, ""
			if s.check(f); len(f.All) > 0 {
				got = f.All[0].Text
			}
			if got != tt.want {
				t.Errorf("%s = %s: got the mistake %q, want %q", tt.key, tt.value, got, tt.want)
			}
		}
	}
}

package lfs_test

import (
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
)

func TestParseOID(t *testing.T) {
	const valid = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393"
	if id, err := lfs.ParseOID(valid); err != nil || id.String() != valid {
		t.Errorf("ParseOID(%q) = %v, %v, want the same and no error", valid, id, err)
	}
	for _, s := range []string{"", valid[1:], valid + "0", strings.ToUpper(valid), "../" + valid[3:],
		valid[:63] + "/", valid[:63] + "\x00"} {
		if _, err := lfs.ParseOID(s); !fault.Is(err, fault.Invalid) {
			t.Errorf("ParseOID(%q) error = %v, want Invalid", s, err)
		}
	}
}

func TestParsePointer(t *testing.T) {
	const oid = "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
	const version = "version https://git-lfs.github.com/spec/v1\n"
	for _, c := range []struct {
		blob string
		ok   bool
	}{
		{version + oid + "size 12345\n", true},
		{version + "ext-0-foo sha256:" + strings.Repeat("0", 64) + "\n" + oid + "size 12345\n", true},
		{"version https://hawser.github.com/spec/v1\n" + oid + "size 12345\n", true},
		{version + oid + "size 12345", true},
		{strings.ReplaceAll(version+oid+"size 12345\n", "\n", "\r\n"), true},
		{"\n \t\n" + version + "\n\r\n" + oid + "\nsize 12345\n\n \n", true},
		{"ext-0-foo sha256:" + strings.Repeat("0", 64) + "\n" + version + oid + "size 12345\n", true},
		{version + oid + "size +12345", true},
		{"version https://example.com/v1\n" + oid + "size 12345\n", false},
		{version + oid + "size -1\n", false},
		{version + oid + "size 99999999999999999999\n", false},
		{version + oid, false},
		{version + "size 12345\n", false},
		{version + oid + oid + "size 12345\n", false},
		{version + "oid md5:1234\nsize 12345\n", false},
		{version + oid + "size 12345\n" + strings.Repeat("x", lfs.MaxPointer), false},
		{oid + "size 12345\n", false},
		{"", false},
	} {
		o, ok := lfs.ParsePointer([]byte(c.blob))
		if ok != c.ok || ok && o.Size != 12345 {
			t.Errorf("ParsePointer(%q) = %v, %t, want %t", c.blob, o, ok, c.ok)
		}
	}
}

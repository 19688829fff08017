package config

import (
	"strings"
	"testing"
)

func TestCheckStore(t *testing.T) {
	t.Parallel()
	const store = "[store]\nurl = \"s3://git-prod/packhorse\"\n"
	for _, test := range []struct{ text, want string }{
		{store, ""},
		{store + "endpoint = \"http://127.0.0.1:7070\"\npath_style = true\ncache = \"500GB\"", ""},
		{"[store]\nurl = \"https://git-prod/packhorse\"", `FILE:2: store.url: "https://git-prod/packhorse" does not name a bucket`},
		{"[store]\nurl = \"s3:///packhorse\"", "does not name a bucket"},
		{"[store]\nurl = \"s3://me:hunter2@git-prod/\"", "credentials are not part of the URL"},
		{"[store]\nendpoint = \"https://s3.example\"", "FILE:2: store.endpoint needs store.url"},
		{store + "endpoint = \"s3.example:9000\"", "FILE:3: store.endpoint: "},
		{store + "profile = \"git\"", "store.profile needs store.credentials_file"},
		{store + "[[mirror]]\nfrom = \"https://github.com/\"", "mirrors and a store are not possible in one process"},
	} {
		cfg, from, err := loadText(t, test.text)
		if err == nil {
			f := &Findings{from: from}
			cfg.checkValues(f)
			err = f.Err()
		}
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%q gives\n %v\nwant\n %q", test.text, err, test.want)
		} else if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q gives %v, want no password", test.text, err)
		}
	}
}

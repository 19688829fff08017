package control

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// configure sends a request in JSON, and returns the settings after it.
func (p *port) configure(request string) (*packhorsev1.Settings, error) {
	p.t.Helper()
	r := &packhorsev1.ConfigureRequest{}
	if err := protojson.Unmarshal([]byte(request), r); err != nil {
		p.t.Fatal(err)
	}
	r.Repository = cmp.Or(r.Repository, "app")
	done, err := p.repositories.Configure(p.t.Context(), connect.NewRequest(r))
	if err != nil {
		return nil, err
	}
	return done.Msg.GetRepository().GetSettings(), nil
}

// Fields without a value stay, others are set, and remove removes.
func TestSettings(t *testing.T) {
	t.Parallel()
	p := newPort(t)
	made, err := p.repositories.Create(t.Context(), connect.NewRequest(&packhorsev1.CreateRequest{Repository: "app",
		Settings: &packhorsev1.Settings{Labels: map[string]string{"team": "a"}}}))
	if err != nil || made.Msg.GetRepository().GetSettings().GetLabels()["team"] != "a" {
		t.Fatalf("Create = %v, %v", made, err)
	}
	all := `{"description": "x", "owner": "Ann", "quotaBytes": "1099511627776", "lfsQuotaBytes": "0", "maxPushBytes": "5",
		"readOnly": true, "archived": false, "hiddenRefs": ["refs/private", "!refs/private/x/"], "labels": {"org.example/tier": "1=2"}}`
	for _, step := range []struct{ request, want string }{
		{`{"settings": ` + all + `}`, strings.Replace(all, `{"org`, `{"team": "a", "org`, 1)},
		{`{}`, strings.Replace(all, `{"org`, `{"team": "a", "org`, 1)},
		{`{"settings": {"labels": {"team": ""}}, "remove": ["labels/org.example/tier", "labels/none", "description", "hidden_refs",
			"archived", "read_only"]}`,
			`{"owner": "Ann", "quotaBytes": "1099511627776", "lfsQuotaBytes": "0", "maxPushBytes": "5", "labels": {"team": ""}}`},
		{`{"settings": {"hiddenRefs": ["refs/a"], "labels": {"b": "c"}, "quotaBytes": "0"}, "remove": ["lfs_quota_bytes", "owner",
			"max_push_bytes", "labels"]}`, `{"quotaBytes": "0", "hiddenRefs": ["refs/a"], "labels": {"b": "c"}}`},
	} {
		want := &packhorsev1.Settings{}
		if err := protojson.Unmarshal([]byte(step.want), want); err != nil {
			t.Fatal(err)
		}
		if got, err := p.configure(step.request); err != nil || protojson.Format(got) != protojson.Format(want) {
			t.Errorf("%s: %v, %v, want %v", step.request, got, err, want)
		}
	}
	got, err := p.repositories.Get(t.Context(), connect.NewRequest(&packhorsev1.GetRequest{Repository: "app"}))
	if err != nil {
		t.Fatal(err)
	}
	expected := `"expected": "` + got.Msg.GetRepository().GetSettingsVersion() + `"`
	if _, err := p.configure(`{"settings": {"owner": "x"}, ` + expected + `}`); err != nil {
		t.Error(err)
	}
	many := make(map[string]string)
	for i := range maxLabels {
		many[fmt.Sprint(i)] = "x"
	}
	labels := `"` + strings.Join(slices.Collect(maps.Keys(many)), `":"","`) + `":""`
	for request, code := range map[string]connect.Code{
		`{"settings": {"owner": "y"}, ` + expected + `}`:                             connect.CodeAborted,
		`{"settings": {"quotaBytes": "-1"}}`:                                         connect.CodeInvalidArgument,
		`{"settings": {"owner": "` + strings.Repeat("x", maxOwner+1) + `"}}`:         connect.CodeInvalidArgument,
		`{"settings": {"description": "a\u0000b"}}`:                                  connect.CodeInvalidArgument,
		`{"settings": {"hiddenRefs": ["private"]}}`:                                  connect.CodeInvalidArgument,
		`{"settings": {"hiddenRefs": ["refs/a\nb"]}}`:                                connect.CodeInvalidArgument,
		`{"settings": {"labels": {"": "x"}}}`:                                        connect.CodeInvalidArgument,
		`{"settings": {"labels": {"a=b": "x"}}}`:                                     connect.CodeInvalidArgument,
		`{"settings": {"labels": {"-a": "x"}}}`:                                      connect.CodeInvalidArgument,
		`{"settings": {"labels": {"a/": "x"}}}`:                                      connect.CodeInvalidArgument,
		`{"settings": {"labels": {"a": "` + strings.Repeat("x", maxLabel+1) + `"}}}`: connect.CodeInvalidArgument,
		`{"settings": {"labels": {` + labels + `}}}`:                                 connect.CodeInvalidArgument,
		`{"remove": ["core.bare"]}`:                                                  connect.CodeInvalidArgument,
		`{"remove": ["owner/x"]}`:                                                    connect.CodeInvalidArgument,
		`{"repository": "none"}`:                                                     connect.CodeNotFound,
	} {
		_, err := p.configure(request)
		p.code(err, code)
	}
	if got, err := p.configure(`{}`); err != nil || got.GetOwner() != "x" || len(got.GetLabels()) != 1 {
		t.Errorf("after refused changes: %v, %v", got, err)
	}
}

package control

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/places"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// settingKeys has the key of Git's configuration of each field of Settings.
var settingKeys = map[protoreflect.Name]string{
	"description": places.DescriptionKey, "owner": "gitweb.owner", "quota_bytes": repo.QuotaKey,
	"lfs_quota_bytes": "lfs.quota", "max_push_bytes": "receive.maxinputsize", "read_only": "packhorse.readonly",
	"archived": "packhorse.archived", "hidden_refs": "transfer.hiderefs", "labels": places.LabelKey,
	"category": places.CategoryKey, "unlisted": places.UnlistedKey,
}

const (
	labelsField    = "labels"
	maxLabels      = 64
	maxLabel       = 256 // bytes of a value
	maxLabelKey    = 253
	maxOwner       = 250
	maxDescription = 4 << 10
	maxHidden      = 100
)

const labelPart = `[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?`

var labelKey = regexp.MustCompile(`^` + labelPart + `(/` + labelPart + `)*$`)

func (s *repositoryService) Configure(ctx context.Context, r *connect.Request[packhorsev1.ConfigureRequest]) (
	*connect.Response[packhorsev1.ConfigureResponse], error) {
	return respond(r.Msg, func(path git.RepoPath) (*packhorsev1.ConfigureResponse, error) {
		if err := checkSettings(r.Msg.GetSettings()); err != nil {
			return nil, err
		}
		d, err := s.Node.Configure(ctx, path, func(now places.Settings) error {
			if version := settingsVersion(now); r.Msg.GetExpected() != "" && r.Msg.GetExpected() != version {
				return fault.New(fault.Aborted, "the settings were changed: their version is %s, expected %s", version,
					fault.Short(r.Msg.GetExpected()))
			}
			for _, name := range r.Msg.GetRemove() {
				if err := removeSetting(now, name); err != nil {
					return err
				}
			}
			return addSettings(now, r.Msg.GetSettings())
		})
		return &packhorsev1.ConfigureResponse{Repository: description(d)}, err
	})
}

// settingsVersion returns a hash of settings.
func settingsVersion(s places.Settings) string {
	text, _ := json.Marshal(s) // its keys are sorted
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// removeSetting removes a setting or a label by its name in a request. One that is not set is ignored.
func removeSetting(from places.Settings, name string) error {
	field, label, isLabel := strings.Cut(name, "/")
	key, ok := settingKeys[protoreflect.Name(field)]
	if !ok || isLabel && field != labelsField {
		return fault.InvalidField("remove", "unknown setting %q", fault.Short(name))
	}
	from[key] = slices.DeleteFunc(slices.Clone(from[key]), func(value string) bool {
		return !isLabel || strings.HasPrefix(value, label+"=")
	})
	if len(from[key]) == 0 {
		delete(from, key)
	}
	return nil
}

// checkSettings returns an error of kind Invalid about a setting of a request.
func checkSettings(s *packhorsev1.Settings) error {
	if s == nil {
		return nil
	}
	for _, n := range []*int64{s.QuotaBytes, s.LfsQuotaBytes, s.MaxPushBytes} {
		if n != nil && *n < 0 {
			return fault.InvalidField("settings", "negative number of bytes")
		}
	}
	switch {
	case len(s.GetDescription()) > maxDescription:
		return fault.InvalidField("settings.description", "longer than %d bytes", maxDescription)
	case len(s.GetOwner()) > maxOwner:
		return fault.InvalidField("settings.owner", "longer than %d bytes", maxOwner)
	case len(s.GetCategory()) > maxOwner:
		return fault.InvalidField("settings.category", "longer than %d bytes", maxOwner)
	case len(s.GetHiddenRefs()) > maxHidden:
		return fault.InvalidField("settings.hidden_refs", "more than %d", maxHidden)
	case strings.ContainsRune(s.GetDescription()+s.GetOwner()+s.GetCategory(), 0):
		return fault.InvalidField("settings", "a text contains a NUL byte")
	}
	for _, name := range s.GetHiddenRefs() {
		prefix := strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(name, "!"), "^"), "/")
		if _, err := git.ParseRefName(prefix); err != nil && prefix != "refs" {
			return fault.InField("settings.hidden_refs", fault.Wrap(fault.Invalid, err.Error(), err))
		}
	}
	for key, value := range s.GetLabels() {
		if len(key) > maxLabelKey || !labelKey.MatchString(key) {
			return fault.InvalidField("settings.labels", `invalid key %q: want parts of letters, digits, ".", "_" and "-", `+
				`separated by slashes`, fault.Short(key))
		}
		if len(value) > maxLabel || strings.ContainsRune(value, 0) {
			return fault.InvalidField("settings.labels", "the value of %s is longer than %d bytes or has a NUL", key, maxLabel)
		}
	}
	return nil
}

// addSettings sets the settings of a request.
func addSettings(to places.Settings, s *packhorsev1.Settings) error {
	s.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		key := settingKeys[field.Name()]
		switch {
		case field.IsMap():
			labels := readLabels(to[key])
			maps.Copy(labels, s.GetLabels())
			to[key] = writeLabels(labels)
		case field.IsList():
			to[key] = slices.Clone(s.GetHiddenRefs())
		default:
			to[key] = []string{value.String()}
		}
		return true
	})
	if len(to[settingKeys[labelsField]]) > maxLabels {
		return fault.InvalidField("settings.labels", "more than %d labels", maxLabels)
	}
	return nil
}

func readLabels(values []string) map[string]string {
	labels := make(map[string]string, len(values))
	for _, value := range values {
		key, value, _ := strings.Cut(value, "=")
		labels[printable(key)] = printable(value)
	}
	return labels
}

func writeLabels(labels map[string]string) (values []string) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		values = append(values, key+"="+labels[key])
	}
	return values
}

// settingsMessage converts settings. Values that are not valid are left out.
func settingsMessage(from places.Settings) *packhorsev1.Settings {
	s := &packhorsev1.Settings{Labels: readLabels(from[settingKeys[labelsField]])}
	for _, name := range from[settingKeys["hidden_refs"]] {
		s.HiddenRefs = append(s.HiddenRefs, printable(name))
	}
	fields := s.ProtoReflect().Descriptor().Fields()
	for name, key := range settingKeys {
		field := fields.ByName(name)
		if len(from[key]) == 0 || field.IsList() || field.IsMap() {
			continue
		}
		last := from[key][len(from[key])-1]
		switch field.Kind() {
		case protoreflect.StringKind:
			s.ProtoReflect().Set(field, protoreflect.ValueOfString(printable(last)))
		case protoreflect.BoolKind:
			if is, ok := repo.ParseBool(last); ok {
				s.ProtoReflect().Set(field, protoreflect.ValueOfBool(is))
			}
		case protoreflect.Int64Kind:
			if n, ok := git.ParseSize(last); ok {
				s.ProtoReflect().Set(field, protoreflect.ValueOfInt64(int64(min(n, 1<<63-1))))
			}
		}
	}
	return s
}

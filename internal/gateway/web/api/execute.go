package api

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"

	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// object is a value of an object type of the schema: its fields by name. A missing field is null. The object of a
// union has its type's name in the field __typename.
type object = map[string]any

// rootField computes a field of the type Query.
type rootField func(ctx context.Context, arguments map[string]any) (any, error)

// execution runs one validated operation. It writes the response's data as JSON. GraphQL libraries that call resolvers
// by name would almost double the size of the program (docs/decisions/0011).
type execution struct {
	schema    *ast.Schema
	variables map[string]any
	roots     map[string]rootField
	recovered func(value any) error // returns the error of a field whose function panicked
	limit     int                   // bytes of out

	out    []byte
	errors gqlerror.List
}

// selectedField is a field of one object type in the response. Fields of a request with the same key are merged.
type selectedField struct {
	key       string
	field     *ast.Field // the first of the merged fields
	arguments map[string]any
	sets      []ast.SelectionSet
	below     map[string][]*selectedField // the fields of its value, by the name of the value's type
}

// selectFields returns the fields that sets request of an object type, in the order of the response.
func (e *execution) selectFields(def *ast.Definition, sets ...ast.SelectionSet) ([]*selectedField, error) {
	var fields []*selectedField
	byKey := map[string]*selectedField{}
	var collect func(ast.SelectionSet) error
	collect = func(set ast.SelectionSet) error {
		for _, selection := range set {
			var err error
			switch s := selection.(type) {
			case *ast.Field:
				if !e.included(s.Directives) {
					continue
				}
				f := &selectedField{key: s.Alias, field: s, arguments: s.ArgumentMap(e.variables)}
				if first := byKey[f.key]; first == nil {
					byKey[f.key] = f
					fields = append(fields, f)
				} else if first.field.Name != s.Name || !reflect.DeepEqual(first.arguments, f.arguments) {
					return gqlerror.ErrorPosf(s.Position, "field %.40q is requested twice with different meanings: use aliases", f.key)
				} else {
					f = first
				}
				f.sets = append(f.sets, s.SelectionSet)
			case *ast.InlineFragment:
				if e.included(s.Directives) && e.applies(s.TypeCondition, def) {
					err = collect(s.SelectionSet)
				}
			case *ast.FragmentSpread:
				if e.included(s.Directives) && e.applies(s.Definition.TypeCondition, def) {
					err = collect(s.Definition.SelectionSet)
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	for _, set := range sets {
		if err := collect(set); err != nil {
			return nil, err
		}
	}
	for _, f := range fields {
		below := e.schema.Types[f.field.Definition.Type.Name()]
		if below == nil || !below.IsCompositeType() {
			continue
		}
		f.below = map[string][]*selectedField{}
		for _, possible := range e.schema.GetPossibleTypes(below) {
			var err error
			if f.below[possible.Name], err = e.selectFields(possible, f.sets...); err != nil {
				return nil, err
			}
		}
	}
	return fields, nil
}

// applies reports whether a fragment with a type condition applies to an object type.
func (e *execution) applies(condition string, def *ast.Definition) bool {
	if condition == "" || condition == def.Name {
		return true
	}
	for _, possible := range e.schema.GetPossibleTypes(e.schema.Types[condition]) {
		if possible == def {
			return true
		}
	}
	return false
}

// included evaluates @skip and @include.
func (e *execution) included(directives ast.DirectiveList) bool {
	for _, d := range directives {
		value := d.ArgumentMap(e.variables)["if"]
		if d.Name == "skip" && value == true || d.Name == "include" && value != true {
			return false
		}
	}
	return true
}

// run executes an operation. Errors of fields are in e.errors; without data, e.out is "null".
func (e *execution) run(ctx context.Context, operation *ast.OperationDefinition) error {
	fields, err := e.selectFields(e.schema.Query, operation.SelectionSet)
	if err != nil {
		return err
	}
	e.out = append(e.out, '{')
	for _, f := range fields {
		e.begin(f.key)
		start := len(e.out)
		if err := e.root(ctx, f); err != nil {
			e.errors = append(e.errors, &gqlerror.Error{Message: fault.Message(err), Path: ast.Path{ast.PathName(f.key)}})
			if e.out = append(e.out[:start], "null"...); f.field.Definition.Type.NonNull {
				e.out = append(e.out[:0], "null"...)
				return nil
			}
		}
	}
	e.out = append(e.out, '}')
	return ctx.Err()
}

// begin starts a field of an object.
func (e *execution) begin(key string) {
	if e.out[len(e.out)-1] != '{' {
		e.out = append(e.out, ',')
	}
	e.out = append(strconv.AppendQuote(e.out, key), ':') // keys are names: letters, digits and underscores
}

func (e *execution) root(ctx context.Context, f *selectedField) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = e.recovered(value)
		}
	}()
	if f.field.Name == "__typename" {
		return e.write(ctx, f.field.Definition.Type, e.schema.Query.Name, nil)
	}
	resolve := e.roots[f.field.Name]
	if resolve == nil {
		return fault.New(fault.Invalid, "field %q is not supported: this server does not describe its schema", f.field.Name)
	}
	value, err := resolve(ctx, f.arguments)
	if err != nil {
		return err
	}
	return e.write(ctx, f.field.Definition.Type, value, f)
}

// write writes a value of a type; f is the field that selects it.
func (e *execution) write(ctx context.Context, t *ast.Type, value any, f *selectedField) error {
	switch value := value.(type) {
	case nil:
		if t.NonNull {
			return fmt.Errorf("no value of type %s", t)
		}
		e.out = append(e.out, "null"...)
	case object:
		fields := f.below[t.Name()]
		if name, ok := value["__typename"].(string); ok {
			fields = f.below[name]
		}
		return e.writeObject(ctx, t.Name(), value, fields)
	case []any:
		e.out = append(e.out, '[')
		for i, element := range value {
			if i > 0 {
				e.out = append(e.out, ',')
			}
			if err := e.write(ctx, t.Elem, element, f); err != nil {
				return err
			}
		}
		e.out = append(e.out, ']')
	default:
		text, err := json.Marshal(value)
		if err == nil && len(e.out)+len(text) > e.limit { // aliases can repeat a long value in one object
			err = e.tooLong()
		}
		if err != nil {
			return err
		}
		e.out = append(e.out, text...)
	}
	return nil
}

func (e *execution) tooLong() error {
	return fault.New(fault.Invalid, "response too long: more than %d bytes", e.limit)
}

func (e *execution) writeObject(ctx context.Context, typeName string, value object, fields []*selectedField) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(e.out) > e.limit {
		return e.tooLong()
	}
	e.out = append(e.out, '{')
	for _, f := range fields {
		e.begin(f.key)
		v := value[f.field.Name]
		if f.field.Name == "__typename" && v == nil {
			v = typeName
		}
		if err := e.write(ctx, f.field.Definition.Type, v, f); err != nil {
			return err
		}
	}
	e.out = append(e.out, '}')
	return nil
}

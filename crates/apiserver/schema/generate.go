// Prints the table of built-in types that the server reads at start: for every kind the JSON
// names, protobuf numbers, types and list rules of its fields.
//
//	go run generate.go $(go list -m -f '{{.Dir}}' k8s.io/api k8s.io/apimachinery) > types.txt
//
// Only facts are taken from the Go sources (names, numbers, types, tags), no text.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"sort"
	"strings"
)

// Types written by hand on both sides; they are leaves here.
var special = map[string]string{
	"meta/v1.Time":               "time",
	"meta/v1.MicroTime":          "microtime",
	"meta/v1.Duration":           "duration",
	"meta/v1.FieldsV1":           "raw",
	"util/intstr.IntOrString":    "intorstring",
	"api/resource.Quantity":      "quantity",
	"runtime.RawExtension":       "raw",
	"types.UID":                  "string",
	"types.NodeName":             "string",
	"types.NamespacedName":       "string",
}

var roots = []string{
	"core/v1.Pod", "core/v1.Service", "core/v1.Node", "core/v1.Namespace", "core/v1.ConfigMap",
	"core/v1.Secret", "core/v1.ServiceAccount", "core/v1.Endpoints", "core/v1.Event",
	"core/v1.ReplicationController", "core/v1.Binding", "apps/v1.Deployment", "apps/v1.ReplicaSet",
	"apps/v1.DaemonSet", "apps/v1.StatefulSet", "discovery/v1.EndpointSlice",
	"coordination/v1.Lease", "events/v1.Event", "networking/v1.Ingress",
	"networking/v1.NetworkPolicy", "networking/v1.ServiceCIDR", "networking/v1.IPAddress",
	"policy/v1.PodDisruptionBudget", "policy/v1.Eviction", "rbac/v1.Role", "rbac/v1.RoleBinding",
	"rbac/v1.ClusterRole", "rbac/v1.ClusterRoleBinding", "scheduling/v1.PriorityClass",
	"admissionregistration/v1.ValidatingAdmissionPolicy",
	"admissionregistration/v1.ValidatingAdmissionPolicyBinding", "authentication/v1.TokenReview",
	"authentication/v1.SelfSubjectReview", "authentication/v1.TokenRequest",
	"authorization/v1.SubjectAccessReview", "authorization/v1.SelfSubjectAccessReview",
	"authorization/v1.LocalSubjectAccessReview", "authorization/v1.SelfSubjectRulesReview",
	"autoscaling/v1.Scale", "meta/v1.DeleteOptions",
}

type named struct {
	spec    *ast.TypeSpec
	imports map[string]string
	pkg     string
	flags   string
}

var (
	types = map[string]named{}
	done  = map[string][]string{}
)

func load(root, dir, pkg string) {
	set := token.NewFileSet()
	files, _ := filepath.Glob(filepath.Join(root, dir, "*.go"))
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || strings.Contains(file, "zz_generated") || strings.HasSuffix(file, "generated.pb.go") {
			continue
		}
		parsed, err := parser.ParseFile(set, file, nil, parser.ParseComments)
		if err != nil {
			panic(err)
		}
		imports := map[string]string{}
		for _, spec := range parsed.Imports {
			path := strings.Trim(spec.Path.Value, `"`)
			short := strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(path, "k8s.io/apimachinery/pkg/apis/"), "k8s.io/apimachinery/pkg/"), "k8s.io/api/")
			name := filepath.Base(path)
			if spec.Name != nil {
				name = spec.Name.Name
			}
			imports[name] = short
		}
		for _, decl := range parsed.Decls {
			general, ok := decl.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range general.Specs {
				if typeSpec, ok := spec.(*ast.TypeSpec); ok {
					flags := ""
					for _, doc := range []*ast.CommentGroup{general.Doc, typeSpec.Doc} {
						if doc == nil {
							continue
						}
						for _, comment := range doc.List {
							if strings.Contains(comment.Text, "+structType=atomic") {
								flags = " struct=atomic"
							}
						}
					}
					types[pkg+"."+typeSpec.Name.Name] = named{typeSpec, imports, pkg, flags}
				}
			}
		}
	}
}

// The table's word for a type, and Go's own for error messages.
func describe(expr ast.Expr, at named) (string, string, string) {
	switch t := expr.(type) {
	case *ast.StarExpr:
		inner, goName, flags := describe(t.X, at)
		return "*" + inner, goName, flags
	case *ast.ArrayType:
		if ident, ok := t.Elt.(*ast.Ident); ok && ident.Name == "byte" {
			return "bytes", "[]uint8", ""
		}
		inner, goName, flags := describe(t.Elt, at)
		return "[]" + inner, "[]" + goName, flags
	case *ast.MapType:
		inner, goName, flags := describe(t.Value, at)
		return "{}" + inner, "map[string]" + goName, flags
	case *ast.Ident:
		switch t.Name {
		case "string", "bool", "int32", "int64", "float64":
			return t.Name, t.Name, ""
		case "int", "uint64", "uint32":
			return "int64", t.Name, ""
		}
		return reference(at.pkg+"."+t.Name, t.Name, at)
	case *ast.SelectorExpr:
		pkg := at.imports[t.X.(*ast.Ident).Name]
		return reference(pkg+"."+t.Sel.Name, t.Sel.Name, at)
	}
	panic(fmt.Sprintf("type %T in %s", expr, at.pkg))
}

func reference(full, short string, at named) (string, string, string) {
	version := filepath.Base(strings.Split(full, ".")[0])
	if word, ok := special[full]; ok {
		return word, version + "." + short, ""
	}
	target, ok := types[full]
	if !ok {
		panic("unknown type " + full)
	}
	switch underlying := target.spec.Type.(type) {
	case *ast.StructType:
		message(full)
		return full, version + "." + short, ""
	case *ast.ArrayType:
		inner, _, _ := describe(underlying, target)
		return inner, version + "." + short, " wrapped"
	default:
		inner, goName, flags := describe(target.spec.Type, target)
		if !strings.HasPrefix(inner, "{}") {
			goName = version + "." + short
		}
		return inner, goName, flags
	}
}

var marker = regexp.MustCompile(`\+(listType|listMapKey|structType|mapType)=(\S+)`)

func message(full string) {
	if _, ok := done[full]; ok {
		return
	}
	done[full] = nil
	at := types[full]
	var lines []string
	for _, field := range at.spec.Type.(*ast.StructType).Fields.List {
		if field.Tag == nil {
			continue
		}
		tag := reflect.StructTag(strings.Trim(field.Tag.Value, "`"))
		jsonTag := strings.Split(tag.Get("json"), ",")
		number := "0"
		if parts := strings.Split(tag.Get("protobuf"), ","); len(parts) > 1 {
			number = parts[1]
		}
		if jsonTag[0] == "-" {
			continue
		}
		inline := false
		omit := ""
		for _, option := range jsonTag[1:] {
			switch option {
			case "inline":
				inline = true
			case "omitempty":
				omit += " omitempty"
			case "omitzero":
				omit += " omitzero"
			}
		}
		if jsonTag[0] == "" {
			inline = true
		}
		if inline && number == "0" {
			continue // TypeMeta
		}
		kind, goName, flags := describe(field.Type, at)
		name := jsonTag[0]
		if inline {
			name = "-"
			flags += " inline"
		}
		flags += omit
		if strategy := tag.Get("patchStrategy"); strategy != "" {
			flags += " patch=" + strategy
		}
		if key := tag.Get("patchMergeKey"); key != "" {
			flags += " key=" + key
		}
		var keys []string
		if field.Doc != nil {
			for _, comment := range field.Doc.List {
				for _, match := range marker.FindAllStringSubmatch(comment.Text, -1) {
					if match[1] == "listMapKey" {
						keys = append(keys, match[2])
					} else {
						flags += " " + strings.TrimSuffix(match[1], "Type") + "=" + match[2]
					}
				}
			}
		}
		if len(keys) > 0 {
			flags += " keys=" + strings.Join(keys, ",")
		}
		lines = append(lines, fmt.Sprintf("%s %s %s %s%s", name, number, kind, goName, flags))
	}
	done[full] = lines
}

func main() {
	api, machinery := os.Args[1], os.Args[2]
	for _, dir := range []string{"core/v1", "apps/v1", "discovery/v1", "coordination/v1", "events/v1", "networking/v1", "policy/v1", "rbac/v1", "scheduling/v1", "admissionregistration/v1", "authentication/v1", "authorization/v1", "autoscaling/v1"} {
		load(api, dir, dir)
	}
	load(machinery, "pkg/apis/meta/v1", "meta/v1")
	for _, root := range roots {
		message(root)
	}
	names := make([]string, 0, len(done))
	for name := range done {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		fmt.Println("@" + name + types[name].flags)
		for _, line := range done[name] {
			fmt.Println(line)
		}
	}
}

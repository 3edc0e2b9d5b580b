// The PTX interpreter by itself: instructions against values worked out by hand from the PTX ISA, and its refusals. That
// nvcc's code for whole kernels runs is shown by the tests with the label ptx.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <vector>

#include <doctest/doctest.h>

#include <limpid/tensor/half.h>

#include <cudasim/device_buffer.h>
#include <cudasim/emulator.h>
#include <cudasim/ptx.h>
#include <cudasim/ptx_numbers.h>
#include <cudasim/ptx_program.h>

using namespace limpid;
using namespace limpid::cudasim;

namespace {
using u64 = std::uint64_t;

// A kernel of one thread: out[0..1] = what `code` leaves in %rd8 and %p1, from %rd1.. = in[0..3].
std::string kernel_around(const std::string& code) {
  return ".version 9.0\n.target sm_90\n.address_size 64\n"
         ".visible .entry probe(\n .param .u64 probe_param_0,\n .param .u64 probe_param_1\n)\n{\n"
         ".reg .pred %p<4>;\n.reg .b64 %rd<16>;\n.reg .b32 %r<8>;\n.reg .b16 %rs<4>;\n"
         "ld.param.u64 %rd10, [probe_param_0];\nld.param.u64 %rd11, [probe_param_1];\n"
         "ld.global.u64 %rd1, [%rd10];\nld.global.u64 %rd2, [%rd10+8];\nld.global.u64 %rd3, [%rd10+16];\nld.global.u64 %rd4, [%rd10+24];\n" +
         code + "\nst.global.u64 [%rd11], %rd8;\nselp.b64 %rd9, 1, 0, %p1;\nst.global.u64 [%rd11+8], %rd9;\nret;\n}\n";
}

struct Result {
  u64 value;
  bool predicate;
  cudaError_t error;
};
Result run_code(const std::string& code, u64 a = 0, u64 b = 0, u64 c = 0, u64 d = 0) {
  ptx::Program program;
  ptx::parse(program, kernel_around(code), "test.ptx");
  DeviceBuffer<u64> in{a, b, c, d}, out{~0ull, ~0ull};
  auto arguments = std::make_shared<std::pair<const u64*, u64*>>(in.data(), out.data());
  Kernel kernel;
  kernel.function = nullptr;
  kernel.body = [&] { ptx::run(program, *program.functions.at("probe"), reinterpret_cast<const unsigned char*>(arguments.get())); };
  kernel.storage = arguments;
  kernel.storage_bytes = sizeof *arguments;
  clear_finding();
  const cudaError_t error = launch_kernel(1, 1, 0, nullptr, kernel);
  return {out[0], out[1] == 1, error};
}
u64 f(float v) { return ptx::bits_of_f32(v); }
u64 d(double v) { return ptx::bits_of_f64(v); }
u64 h2(float low, float high) { return Half(low).bits | u64(Half(high).bits) << 16; }
u64 b2(float low, float high) { return BFloat16(low).bits | u64(BFloat16(high).bits) << 16; }
}  // namespace

TEST_CASE("instructions") {
  struct Row {
    const char* code;
    u64 a, b, c, want;
  };
  const float inf = INFINITY;
  const u64 m1 = 0xffffffff;  // -1 in 32 bits
  const std::vector<Row> rows = {
      {"add.s32 %rd8, %rd1, %rd2;", m1, 3, 0, 2},
      {"sub.u32 %rd8, %rd1, %rd2;", 2, 3, 0, m1},
      {"add.s16 %rd8, %rd1, %rd2;", 0xffff, 2, 0, 1},
      {"mul.lo.s32 %rd8, %rd1, %rd2;", 0x10001, 0x10001, 0, 0x20001},
      {"mul.hi.s32 %rd8, %rd1, %rd2;", m1, 5, 0, m1},
      {"mul.hi.u32 %rd8, %rd1, %rd2;", m1, 5, 0, 4},
      {"mul.hi.u64 %rd8, %rd1, %rd2;", ~0ull, 7, 0, 6},
      {"mul.wide.s32 %rd8, %rd1, %rd2;", m1, 5, 0, u64(-5)},
      {"mul.wide.u32 %rd8, %rd1, %rd2;", m1, 5, 0, 5 * m1},
      {"mad.lo.s32 %rd8, %rd1, %rd2, %rd3;", m1, 5, 7, 2},
      {"mad.wide.u32 %rd8, %rd1, %rd2, %rd3;", m1, m1, 1, m1 * m1 + 1},
      {"div.s32 %rd8, %rd1, %rd2;", u64(std::uint32_t(-7)), 2, 0, std::uint32_t(-3)},
      {"div.u32 %rd8, %rd1, %rd2;", u64(std::uint32_t(-7)), 2, 0, 0x7ffffffc},
      {"rem.s32 %rd8, %rd1, %rd2;", u64(std::uint32_t(-7)), 2, 0, m1},
      {"rem.s64 %rd8, %rd1, %rd2;", u64(-7), 4, 0, u64(-3)},
      {"min.s32 %rd8, %rd1, %rd2;", m1, 3, 0, m1},
      {"min.u32 %rd8, %rd1, %rd2;", m1, 3, 0, 3},
      {"max.s64 %rd8, %rd1, %rd2;", u64(-1), 3, 0, 3},
      {"neg.s32 %rd8, %rd1;", 5, 0, 0, std::uint32_t(-5)},
      {"abs.s32 %rd8, %rd1;", u64(std::uint32_t(-5)), 0, 0, 5},
      {"and.b32 %rd8, %rd1, 12;", 10, 0, 0, 8},
      {"or.b64 %rd8, %rd1, %rd2;", 10, 1ull << 60, 0, 10 | 1ull << 60},
      {"xor.b32 %rd8, %rd1, %rd2;", 10, 12, 0, 6},
      {"not.b32 %rd8, %rd1;", 1, 0, 0, 0xfffffffe},
      {"shl.b32 %rd8, %rd1, %rd2;", 3, 31, 0, 0x80000000},
      {"shl.b32 %rd8, %rd1, %rd2;", 3, 32, 0, 0},
      {"shr.u32 %rd8, %rd1, %rd2;", 0x80000000, 31, 0, 1},
      {"shr.s32 %rd8, %rd1, %rd2;", 0x80000000, 40, 0, m1},
      {"shr.s64 %rd8, %rd1, %rd2;", u64(-16), 2, 0, u64(-4)},
      {"shf.l.wrap.b32 %rd8, %rd1, %rd2, %rd3;", 0x80000000, 1, 33, 3},
      {"shf.r.clamp.b32 %rd8, %rd1, %rd2, %rd3;", 0x80000000, 5, 40, 5},
      {"bfi.b32 %rd8, %rd1, %rd2, 4, 8;", 0xabc, 0xffffffff, 0, 0xfffffbcf},
      {"bfe.u32 %rd8, %rd1, 4, 8;", 0xabcd, 0, 0, 0xbc},
      {"bfe.s32 %rd8, %rd1, 4, 8;", 0xabcd, 0, 0, 0xffffffbc},
      {"brev.b32 %rd8, %rd1;", 1, 0, 0, 0x80000000},
      {"prmt.b32 %rd8, %rd1, %rd2, 0x7610;", 0x33221100, 0x77665544, 0, 0x77661100},
      {"prmt.b32 %rd8, %rd1, %rd2, 0x888b;", 0x80000000, 0, 0, 0x000000ff},
      {"lop3.b32 %rd8, %rd1, %rd2, %rd3, 0x96;", 0xf0, 0xcc, 0xaa, 0xf0 ^ 0xcc ^ 0xaa},
      {"popc.b64 %rd8, %rd1;", 0xff00ff, 0, 0, 16},
      {"clz.b32 %rd8, %rd1;", 1, 0, 0, 31},
      {"clz.b64 %rd8, %rd1;", 0, 0, 0, 64},
      {"add.cc.u32 %rd7, %rd1, %rd2;\naddc.u32 %rd8, %rd3, 0;", m1, 1, 6, 7},
      {"sub.cc.u32 %rd7, %rd1, %rd2;\nsubc.u32 %rd8, %rd3, 0;", 1, 2, 6, 5},
      {"mad.lo.cc.u32 %rd7, %rd1, %rd2, %rd3;\nmadc.hi.u32 %rd8, %rd1, %rd2, 0;", m1, m1, m1, m1},
      {"add.f32 %rd8, %rd1, %rd2;", f(1.5f), f(2), 0, f(3.5f)},
      {"add.rz.f32 %rd8, %rd1, %rd2;", f(1), f(1e-9f), 0, f(1)},
      {"add.rp.f32 %rd8, %rd1, %rd2;", f(1), f(1e-9f), 0, f(1) + 1},
      {"add.rm.f32 %rd8, %rd1, %rd2;", f(-1), f(-1e-9f), 0, f(-1) + 1},
      {"fma.rn.f32 %rd8, %rd1, %rd2, %rd3;", f(1 + 0x1p-12f), f(1 + 0x1p-12f), f(-1 - 0x1p-11f), f(0x1p-24f)},
      {"fma.rn.f64 %rd8, %rd1, %rd2, %rd3;", d(3), d(4), d(5), d(17)},
      {"mul.ftz.f32 %rd8, %rd1, %rd2;", f(0x1p-126f), f(0.5f), 0, f(0)},
      {"mul.f32 %rd8, %rd1, %rd2;", f(0x1p-126f), f(0.5f), 0, f(0x1p-127f)},
      {"div.rn.f32 %rd8, %rd1, %rd2;", f(1), f(3), 0, f(1.0f / 3)},
      {"max.f32 %rd8, %rd1, %rd2;", f(NAN), f(2), 0, f(2)},
      {"max.NaN.f32 %rd8, %rd1, %rd2;", f(NAN), f(2), 0, f(NAN)},
      {"min.f32 %rd8, %rd1, %rd2;", f(0.0f), f(-0.0f), 0, f(-0.0f)},
      {"add.sat.f32 %rd8, %rd1, %rd2;", f(1), f(2), 0, f(1)},
      {"abs.f32 %rd8, %rd1;", f(-2), 0, 0, f(2)},
      {"neg.f64 %rd8, %rd1;", d(-2), 0, 0, d(2)},
      {"ex2.approx.f32 %rd8, %rd1;", f(3), 0, 0, f(8)},
      {"lg2.approx.f32 %rd8, %rd1;", f(8), 0, 0, f(3)},
      {"rcp.rn.f32 %rd8, %rd1;", f(4), 0, 0, f(0.25f)},
      {"sqrt.rn.f64 %rd8, %rd1;", d(9), 0, 0, d(3)},
      {"rsqrt.approx.f32 %rd8, %rd1;", f(4), 0, 0, f(0.5f)},
      {"copysign.f32 %rd8, %rd1, %rd2;", f(-1), f(5), 0, f(-5)},
      {"cvt.rn.f32.s32 %rd8, %rd1;", m1, 0, 0, f(-1)},
      {"cvt.rn.f32.u64 %rd8, %rd1;", (1ull << 24) + 1, 0, 0, f(0x1p24f)},
      {"cvt.rzi.s32.f32 %rd8, %rd1;", f(-2.9f), 0, 0, std::uint32_t(-2)},
      {"cvt.rni.s32.f32 %rd8, %rd1;", f(2.5f), 0, 0, 2},
      {"cvt.rzi.s32.f32 %rd8, %rd1;", f(1e20f), 0, 0, 0x7fffffff},
      {"cvt.rzi.u32.f32 %rd8, %rd1;", f(-5), 0, 0, 0},
      {"cvt.rzi.s32.f32 %rd8, %rd1;", f(NAN), 0, 0, 0},
      {"cvt.rmi.f32.f32 %rd8, %rd1;", f(-2.1f), 0, 0, f(-3)},
      {"cvt.rpi.f64.f64 %rd8, %rd1;", d(2.1), 0, 0, d(3)},
      {"cvt.sat.f32.f32 %rd8, %rd1;", f(-inf), 0, 0, f(0)},
      {"cvt.rn.f32.f64 %rd8, %rd1;", d(1.0 / 3), 0, 0, f(1.0f / 3)},
      {"cvt.rz.f32.f64 %rd8, %rd1;", d(2.0 / 3), 0, 0, f(2.0f / 3) - 1},
      {"cvt.s64.s16 %rd8, %rd1;", 0x8000, 0, 0, u64(-32768)},
      {"cvt.s32.s8 %rd8, %rd1;", 0x180, 0, 0, std::uint32_t(-128)},
      {"cvt.u32.u8 %rd8, %rd1;", 0x180, 0, 0, 0x80},
      {"cvt.rn.f16x2.f32 %rd8, %rd1, %rd2;", f(2), f(1), 0, h2(1, 2)},
      {"cvt.rn.bf16x2.f32 %rd8, %rd1, %rd2;", f(2), f(1.00390625f), 0, b2(1, 2)},
      {"cvt.rn.bf16.f32 %rd8, %rd1;", f(1.01171875f), 0, 0, BFloat16(1.015625f).bits},
      {"cvt.f32.bf16 %rd8, %rd1;", BFloat16(-1.5f).bits, 0, 0, f(-1.5f)},
      {"add.f16x2 %rd8, %rd1, %rd2;", h2(1, -2), h2(2048, 0.5f), 0, h2(2048, -1.5f)},
      {"mul.bf16x2 %rd8, %rd1, %rd2;", b2(3, 2), b2(5, -0.5f), 0, b2(15, -1)},
      {"fma.rn.f16x2 %rd8, %rd1, %rd2, %rd3;", h2(2, 3), h2(4, 5), h2(1, -15), h2(9, 0)},
      {"fma.rn.bf16 %rd8, %rd1, %rd2, %rd3;", BFloat16(2).bits, BFloat16(3).bits, BFloat16(1).bits, BFloat16(7).bits},
      {"max.f16x2 %rd8, %rd1, %rd2;", h2(1, NAN), h2(2, 4), 0, h2(2, 4)},
      {"add.f16 %rd8, %rd1, %rd2;", Half(65504).bits, Half(16).bits, 0, Half(inf).bits},
      {"mov.b32 %rd8, {%rd1, %rd2};", 0x1234, 0x5678, 0, 0x56781234},
      {"mov.b64 {%rd7, %rd8}, %rd1;", 0x123456789abcdef0, 0, 0, 0x12345678},
      {"mov.b64 {_, %rd8}, %rd1;", 0x123456789abcdef0, 0, 0, 0x12345678},
      {"selp.b32 %rd8, %rd1, %rd2, %p2;", 1, 2, 0, 2},
      {"mov.b32 %rd8, 0f3F800000;", 0, 0, 0, 0x3f800000},
      {"mov.u32 %rd8, %ntid.x;", 0, 0, 0, 1},
      {"mov.u32 %rd8, WARP_SZ;", 0, 0, 0, 32},
      {"setp.eq.s64 %p2, %rd1, %rd1;\n@%p2 bra $there;\nmov.u64 %rd8, 1;\nbra.uni $end;\n$there:\nmov.u64 %rd8, 2;\n$end:\n", 0, 0, 0, 2},
      {"mov.u64 %rd8, 5;\n@!%p2 mov.u64 %rd8, 6;", 0, 0, 0, 6},
      {"brx.idx %rd1, $table;\n$table: .branchtargets $zero, $one;\n$zero:\nmov.u64 %rd8, 10;\nbra $end;\n$one:\nmov.u64 %rd8, 11;\n$end:\n", 1, 0, 0, 11},
      {"{ .reg .b32 %temp; mov.b64 {%temp, %r1}, %rd1; }\n{ .reg .b32 %temp; mov.b64 {%r2, %temp}, %rd1; }\nsub.u32 %rd8, %r1, %r2;", 0x0000000900000004, 0, 0, 5},
  };
  for (const Row& row : rows) {
    CAPTURE(std::string(row.code));
    const Result result = run_code(row.code, row.a, row.b, row.c);
    CHECK(result.error == cudaSuccess);
    CHECK_MESSAGE(result.value == row.want, finding());
  }
}

TEST_CASE("comparisons: ordered, unordered, signed, unsigned, combined") {
  auto is = [](const char* code, u64 a, u64 b) {
    const Result r = run_code(std::string("mov.u64 %rd8, 0;\nsetp.ne.s64 %p2, %rd1, %rd1;\n") + code, a, b);
    CHECK(r.error == cudaSuccess);
    return r.predicate;
  };
  CHECK(is("setp.lt.s32 %p1, %rd1, %rd2;", 0xffffffff, 1));
  CHECK_FALSE(is("setp.lt.u32 %p1, %rd1, %rd2;", 0xffffffff, 1));
  CHECK(is("setp.hi.u32 %p1, %rd1, %rd2;", 0xffffffff, 1));
  CHECK(is("setp.ge.s16 %p1, %rd1, %rd2;", 5, 0xffff));
  CHECK(is("setp.ne.b64 %p1, %rd1, %rd2;", 1ull << 40, 0));
  CHECK_FALSE(is("setp.lt.f32 %p1, %rd1, %rd2;", f(NAN), f(1)));
  CHECK(is("setp.ltu.f32 %p1, %rd1, %rd2;", f(NAN), f(1)));
  CHECK(is("setp.neu.f64 %p1, %rd1, %rd2;", d(NAN), d(NAN)));
  CHECK_FALSE(is("setp.ne.f64 %p1, %rd1, %rd2;", d(NAN), d(NAN)));
  CHECK(is("setp.nan.f32 %p1, %rd1, %rd2;", f(1), f(NAN)));
  CHECK(is("setp.num.f32 %p1, %rd1, %rd2;", f(1), f(2)));
  CHECK(is("setp.gt.f16 %p1, %rd1, %rd2;", Half(2).bits, Half(-3).bits));
  CHECK_FALSE(is("setp.eq.and.s32 %p1, %rd1, %rd2, %p2;", 1, 1));
  CHECK(is("setp.eq.and.s32 %p1, %rd1, %rd2, !%p2;", 1, 1));
  CHECK(is("setp.ne.or.s32 %p1, %rd1, %rd2, !%p2;", 1, 1));
  CHECK(is("setp.eq.s32 %p3|%p1, %rd1, %rd2;", 1, 2));
  CHECK(is("testp.infinite.f64 %p1, %rd1;", d(-INFINITY), 0));
  CHECK_FALSE(is("testp.finite.f32 %p1, %rd1;", f(NAN), 0));
}

TEST_CASE("16-bit conversions: every half and bfloat16, and what lies between them") {
  for (unsigned bits = 0; bits < 65536; bits++) {
    Half h;
    BFloat16 b;
    h.bits = b.bits = static_cast<std::uint16_t>(bits);
    if (!std::isnan(float(h))) {
      CHECK(ptx::f16_bits(float(h)) == bits);
      const double between = double(float(h)) * (1 + 0x1p-12);
      CHECK(ptx::f16_bits(between) == Half(static_cast<float>(between)).bits);
    }
    if (!std::isnan(float(b))) CHECK(ptx::bf16_bits(float(b)) == bits);
  }
  // Just above the middle of two halves, by less than a float can tell: one rounding, not two.
  CHECK(ptx::f16_bits(1 + 0x1p-11 + 0x1p-40) == Half(1 + 0x1p-10f).bits);
  CHECK(ptx::f16_bits(1 + 0x1p-11) == Half(1).bits);
}

TEST_CASE("what it does not know is refused, with the line") {
  auto refusal = [](const std::string& code) {
    try {
      run_code(code);
    } catch (const std::runtime_error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  CHECK(refusal("frobnicate.b32 %rd8, %rd1;").find("unsupported instruction: frobnicate.b32") != std::string::npos);
  CHECK(refusal("frobnicate.b32 %rd8, %rd1;").find("test.ptx:19") != std::string::npos);
  CHECK(refusal("add.mystery.s32 %rd8, %rd1, %rd2;").find("unsupported modifier .mystery") != std::string::npos);
  CHECK(refusal("mov.u32 %rd8, %clock;").find("unsupported register") != std::string::npos);
  CHECK(refusal("bra $nowhere;").find("unknown name $nowhere") != std::string::npos);
  CHECK(refusal("wmma.load.a.sync %rd8, [%rd1];").find("unsupported instruction") != std::string::npos);

  // Known words in a combination that is not: found when it is run.
  for (const char* code : {"add.sat.s32 %rd8, %rd1, %rd2;", "ex2.approx.f16x2 %rd8, %rd1;", "bar.sync 1;", "cvt.rz.f16.f32 %rd8, %rd1;",
                           "shl.b32 %rd8, $nowhere_yet, %rd1;\n$nowhere_yet:\n"}) {
    CAPTURE(std::string(code));
    const Result result = run_code(code);
    CHECK(result.error == cudaErrorUnknown);
    CHECK(finding().find("the PTX interpreter does not know this") != std::string::npos);
  }
  clear_finding();
}

TEST_CASE("memory: local, static tables, shared addresses both ways, calls") {
  const std::string text =
      ".version 9.0\n.target sm_90\n.address_size 64\n"
      ".global .align 4 .b8 table[8] = {1, 0, 0, 0, 44, 1};\n"
      ".func (.param .b32 func_retval0) twice_plus(\n .param .b32 twice_plus_param_0,\n .param .b32 twice_plus_param_1\n)\n{\n"
      ".reg .b32 %r<4>;\nld.param.b32 %r1, [twice_plus_param_0];\nld.param.b32 %r2, [twice_plus_param_1];\n"
      "mad.lo.s32 %r3, %r1, 2, %r2;\nst.param.b32 [func_retval0+0], %r3;\nret;\n}\n"
      ".visible .entry k(\n .param .u64 k_param_0\n)\n.maxntid 32, 1, 1\n{\n"
      ".local .align 16 .b8 __local_depot0[16];\n.reg .b64 %SP;\n.reg .b64 %SPL;\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n"
      ".shared .align 4 .b8 s[128];\n"
      "mov.u64 %SPL, __local_depot0;\ncvta.local.u64 %SP, %SPL;\nld.param.u64 %rd1, [k_param_0];\ncvta.to.global.u64 %rd2, %rd1;\n"
      "mov.u32 %r1, 7;\nst.local.u32 [%SPL+4], %r1;\nld.u32 %r2, [%SP+4];\nst.global.u32 [%rd2], %r2;\n"
      "ld.global.nc.u32 %r3, [table+4];\nst.global.u32 [%rd2+4], %r3;\n"
      "mov.u32 %r4, s;\ncvt.u64.u32 %rd3, %r4;\ncvta.shared.u64 %rd4, %rd3;\nst.u32 [%rd4+8], %r3;\ncvta.to.shared.u64 %rd5, %rd4;\n"
      "cvt.u32.u64 %r5, %rd5;\nld.shared.u32 %r6, [%r5+8];\nst.global.u32 [%rd2+8], %r6;\n"
      "{ // callseq 0, 0\n.reg .b32 temp_param_reg;\n.param .b32 param0;\nst.param.b32 [param0+0], %r1;\n.param .b32 param1;\n"
      "st.param.b32 [param1+0], %r3;\n.param .b32 retval0;\ncall.uni (retval0), \ntwice_plus, \n(\nparam0, \nparam1\n);\n"
      "ld.param.b32 %r7, [retval0+0];\n} // callseq 0\nst.global.u32 [%rd2+12], %r7;\n"
      "atom.shared.add.u32 %r8, [%r4+8], 5;\nld.shared.u32 %r8, [%r4+8];\nst.global.u32 [%rd2+16], %r8;\n"
      "st.local.u32 [%SPL+16], %r1;\nret;\n}\n";  // the last store leaves the array
  ptx::Program program;
  ptx::parse(program, text, "memory.ptx");
  DeviceBuffer<int> out(5);
  auto argument = std::make_shared<int*>(out.data());
  Kernel kernel;
  kernel.function = nullptr;
  kernel.body = [&] { ptx::run(program, *program.functions.at("k"), reinterpret_cast<const unsigned char*>(argument.get())); };
  kernel.storage = argument;
  kernel.storage_bytes = sizeof(int*);
  CHECK(launch_kernel(1, 1, 0, nullptr, kernel) == cudaErrorIllegalAddress);
  CHECK(out.values() == std::vector<int>{7, 300, 300, 314, 305});
  clear_finding();
}

TEST_CASE("a wide read needs one written byte, for the padding of structs; a narrow one needs all") {
  ptx::Program program;
  ptx::parse(program, ".version 9.0\n.visible .entry k(\n.param .u64 k_param_0\n)\n{\n.reg .b64 %rd<2>;\n.reg .b32 %r<5>;\n"
             "ld.param.u64 %rd1, [k_param_0];\nld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];\nst.global.u32 [%rd1+12], %r2;\n"
             "ld.global.u32 %r1, [%rd1+4];\nret;\n}\n", "padding.ptx");
  DeviceBuffer<int> memory(4);
  auto argument = std::make_shared<int*>(memory.data());
  Kernel kernel;
  kernel.function = nullptr;
  kernel.body = [&] { ptx::run(program, *program.functions.at("k"), reinterpret_cast<const unsigned char*>(argument.get())); };
  kernel.storage = argument;
  kernel.storage_bytes = sizeof(int*);
  CHECK(launch_kernel(1, 1, 0, nullptr, kernel) == cudaErrorLaunchFailure);
  CHECK(finding().find("read of uninitialised device memory at byte 0") != std::string::npos);
  clear_finding();
  mark_initialised(memory.data(), 4);
  CHECK(launch_kernel(1, 1, 0, nullptr, kernel) == cudaErrorLaunchFailure);
  CHECK(finding().find("read of uninitialised device memory at byte 4") != std::string::npos);
  clear_finding();
}

TEST_CASE("a kernel that the loaded PTX lacks is an error, and so is a file that does not load") {
  CHECK_THROWS_WITH_AS(load_ptx("/no/such/file.ptx"), "cannot read the PTX file /no/such/file.ptx", std::runtime_error);
  const std::string path = "cudasim_test_ptx.ptx";
  std::ofstream(path) << kernel_around("mov.u64 %rd8, 1;");
  load_ptx(path);
  Kernel kernel;
  kernel.function = reinterpret_cast<const void*>(&kernel_around);
  CHECK_THROWS_AS(ptx_body(kernel), std::runtime_error);
  unload_ptx();
  CHECK(ptx_body(kernel) == nullptr);
  std::remove(path.c_str());
}

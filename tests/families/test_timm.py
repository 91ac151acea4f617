"""timm models, one or two of a family: forward and backward as eager, in one graph."""

from __future__ import annotations

import pytest
import timm
import torch
from measure import measure

SPREAD = ("resnet18", "mobilenetv3_small_050", "vit_tiny_patch16_224")
FAMILIES = """
resnet18 resnet26d seresnet18 resnext26ts skresnet18 res2net50_14w_8s densenet121 dla34 dpn48b vgg11_bn
mobilenetv2_050 mobilenetv3_small_050 mnasnet_050 efficientnet_b0 efficientnet_lite0 fbnetc_100 ghostnet_050
hardcorenas_a regnetx_002 regnety_002 nfnet_f0 dm_nfnet_f0 rexnet_100 hrnet_w18_small vovnet39a cspresnet50
cspdarknet53 inception_v3 inception_v4 xception41 selecsls42 tresnet_m repvgg_a0 mobileone_s0 convnext_atto
convnextv2_atto convmixer_768_32 edgenext_xx_small fastvit_t8 efficientformer_l1 efficientformerv2_s0 efficientvit_b0
efficientvit_m0 levit_128s mobilevit_xxs mobilevitv2_050 vit_tiny_patch16_224 deit_tiny_patch16_224
deit3_small_patch16_224 beit_base_patch16_224 cait_xxs24_224 crossvit_tiny_240 coat_tiny coatnet_0_224 convit_tiny
eva02_tiny_patch14_224 gcvit_xxtiny gmlp_s16_224 mixer_s32_224 resmlp_12_224 halonet26t lambda_resnet26t botnet26t_256
nest_tiny pit_ti_224 poolformer_s12 caformer_s18 pvt_v2_b0 swin_tiny_patch4_window7_224 swinv2_tiny_window8_256
swin_s3_tiny_224 maxvit_tiny_tf_224 tiny_vit_5m_224 tnt_s_patch16_224 twins_pcpvt_small visformer_tiny volo_d1_224
xcit_nano_12_p16_224 davit_tiny focalnet_tiny_srf hgnet_tiny hgnetv2_b0 inception_next_tiny mvitv2_tiny
repghostnet_050 repvit_m0_9 sequencer2d_s starnet_s1 ghostnetv2_100 mambaout_femto hiera_tiny_224 fasternet_t0
lcnet_050 tinynet_e flexivit_small samvit_base_patch16 vitamin_small_224 naflexvit_base_patch16_gap
""".split()
SMALL = (3, 96, 96)  # for models that take any image
WHOLE_BLOCKS = ("halonet26t",)  # these take whole multiples of their blocks
SETTINGS = {"samvit_base_patch16": {"img_size": 256}}  # at its own 1024 px the float64 step needs over 20 GB


def cases() -> list[object]:
    return [pytest.param(n, marks=() if n in SPREAD else pytest.mark.slow) for n in FAMILIES]


@pytest.mark.parametrize("name", cases())
def test_as_eager(name: str) -> None:
    torch.manual_seed(0)
    settings = SETTINGS.get(name, {})
    model = timm.create_model(name, num_classes=10, **settings)
    own = model.default_cfg.get("fixed_input_size") or name in WHOLE_BLOCKS
    size = model.default_cfg["input_size"] if own else SMALL
    if "img_size" in settings:
        size = (3, settings["img_size"], settings["img_size"])
    result = measure(model, (torch.randn(2, *size),), {})
    assert result.error <= 1 and not result.fallbacks
    assert result.graphs == 1 and not result.breaks
